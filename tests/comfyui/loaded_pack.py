"""The pack's modules in ComfyUI's interpreter, without its node interface."""

import importlib
import importlib.util
import sys
from pathlib import Path

PACK = "pack_under_test"


def pack_module(name):
    """A module of the pack by its dotted name, under a name like the one ComfyUI gives a pack.

    The packages of nodes are made but not run.
    """
    root = Path(__file__).resolve().parents[2]
    for package in ("", ".nodes", ".nodes.host"):
        if PACK + package in sys.modules:
            continue
        folder = root.joinpath(*package.split("."))
        spec = importlib.util.spec_from_file_location(
            PACK + package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[PACK + package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{PACK}.{name}")
