"""Runs inside ComfyUI's interpreter under ``-X importtime``: loads packs as ComfyUI does.

Usage: python - RESULT PACK [PACK ...] in ComfyUI's folder, with this file as the input, so that the
modules beside it are not found. Each pack is loaded in a process that is forked off one that has
started as far as ComfyUI has when it comes to the packs, so that every load is a first one.

The file RESULT gets a line of JSON per pack: whether it was loaded, and the modules that it
imported. On standard error a line "begin" goes before the import times of each.
"""

import asyncio
import gc
import json
import os
import sys
from pathlib import Path


def load(pack, result):
    import nodes

    before = set(sys.modules)
    done = asyncio.run(nodes.load_custom_node(pack))
    facts = {"pack": pack, "done": done, "modules": sorted(set(sys.modules) - before)}
    with result.open("a") as file:
        file.write(json.dumps(facts) + "\n")


def main():
    result, packs = Path(sys.argv[1]), sys.argv[2:]
    data = str(result.with_name("data"))
    sys.argv = ["main.py", "--cpu", "--disable-api-nodes", "--base-directory", data]
    import comfy.options

    comfy.options.enable_args_parsing()
    import server

    # Core's own packs come first, as when ComfyUI starts.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    server.PromptServer(loop)
    import nodes

    loop.run_until_complete(nodes.init_builtin_extra_nodes())
    # A collection of all that ComfyUI holds would fall to whatever module is just being imported.
    gc.collect()
    gc.freeze()
    if len(packs) > 1:
        # Whatever Python is told here of bytecode, only a pack's first start compiles its files.
        sys.pycache_prefix, sys.dont_write_bytecode = str(result.with_name("bytecode")), False
    for pack in packs:
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            sys.stderr.write(f"begin {pack}\n")
            sys.stderr.flush()
            load(pack, result)
            sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
