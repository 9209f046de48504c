"""Where the tests' environment over a ComfyUI keeps bytecode; copied into it, run at its start.

New bytecode goes to a folder of the environment. What pip has compiled beside the packages of the
ComfyUI is read there: to compile torch and all the others once more takes long.
"""

import importlib._bootstrap_external as loading
import os
import sys


def install(cache, folders):
    """Write bytecode to a folder, and read that of packages where it is."""
    sys.pycache_prefix = cache
    usual = loading.cache_from_source

    def place(path, *arguments, **options):
        if path.startswith(folders):
            folder, name = path.rsplit(os.sep, 1)
            tag = sys.implementation.cache_tag
            beside = f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc"
            if _is_of(beside, path):
                return beside
        return usual(path, *arguments, **options)

    loading.cache_from_source = place


def _is_of(beside, path):
    """Whether bytecode is that of a source as it is now, so that nobody writes it again."""
    try:
        with open(beside, "rb") as file:  # noqa: PTH123 - pathlib is not there yet
            header = file.read(16)
        source = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    numbers = [int.from_bytes(header[at : at + 4], "little") for at in (4, 8, 12)]
    return numbers == [0, int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF]
