"""Runs inside ComfyUI's interpreter: saves a run file as the node does it, with the cache copied.

Usage: python run_file_process.py PACK RUN_FILE, with ComfyUI on PYTHONPATH. Prints the saved
file, or the error.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

PACK = "adapter_trainer_pack"


def main():
    pack, run_file = sys.argv[1:]
    for name, folder in ((PACK, Path(pack)), (f"{PACK}.nodes", Path(pack) / "nodes")):
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    run_files = importlib.import_module(f"{PACK}.nodes.services.run_files")
    reading = importlib.import_module(f"{PACK}.trainer_core.families.run_files")
    errors = importlib.import_module(f"{PACK}.trainer_core.errors")
    try:
        saved = run_files.save_run_file(reading.load_config(run_file), copy_cache=True)
        sys.stdout.write(f"SAVED {saved}\n")
    except errors.TrainerError as error:
        sys.stdout.write(f"REFUSED {error.found}\n")


if __name__ == "__main__":
    main()
