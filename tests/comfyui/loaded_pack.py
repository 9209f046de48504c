"""The pack's modules in ComfyUI's interpreter, without its node interface."""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

PACK = "adapter_trainer_pack"
ROOT = Path(__file__).resolve().parents[2]
_HERE = str(Path(__file__).parent)

# ComfyUI's own modules come before those of the tests, of which one is a server too.
sys.path[:] = [*(path for path in sys.path if path != _HERE), _HERE]


def part(name):
    """A module of the pack by its dotted name, under a name like the one ComfyUI gives a pack.

    The packages of nodes are made but not run.
    """
    for package in ("", ".nodes", ".nodes.host"):
        if PACK + package not in sys.modules:
            spec = ModuleSpec(PACK + package, None, is_package=True)
            spec.submodule_search_locations = [str(ROOT.joinpath(*package.split(".")))]
            sys.modules[PACK + package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{PACK}.{name}")
