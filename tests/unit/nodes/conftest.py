"""Files of the nodes that need no ComfyUI, loaded without the package's start, which does."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
_PACK = "adapter_trainer_pack"


def pack_module(name: str) -> ModuleType:
    """A file of nodes/, inside a package that is named by nobody else, as ComfyUI does it."""
    for package, folder in ((_PACK, ROOT), (f"{_PACK}.nodes", ROOT / "nodes")):
        if package not in sys.modules:
            spec = ModuleSpec(package, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{_PACK}.nodes.{name}")


@pytest.fixture(scope="session")
def folders() -> ModuleType:
    return pack_module("host.folders")


@pytest.fixture(scope="session")
def image_folder() -> ModuleType:
    return pack_module("services.image_folder")


@pytest.fixture(scope="session")
def combined_datasets() -> ModuleType:
    return pack_module("services.combined_datasets")


@pytest.fixture(scope="session")
def run_files() -> ModuleType:
    return pack_module("services.run_files")


@pytest.fixture(scope="session")
def run_history() -> ModuleType:
    return pack_module("services.run_history")


@pytest.fixture(scope="session")
def run_state() -> ModuleType:
    return pack_module("services.run_state")


@pytest.fixture(scope="session")
def dataset_upload() -> ModuleType:
    return pack_module("services.dataset_upload")


@pytest.fixture(scope="session")
def dataset_report() -> ModuleType:
    return pack_module("services.dataset_report")


@pytest.fixture(scope="session")
def caption_edits() -> ModuleType:
    return pack_module("services.caption_edits")


@pytest.fixture(scope="session")
def allowed() -> type:
    """`AllowedFolders`, in the pack's own copy of the library."""
    return pack_module("services.caption_edits").AllowedFolders


@pytest.fixture(scope="session")
def errors(folders: ModuleType) -> ModuleType:
    """The errors as these files know them: the pack's own copy of the library."""
    return sys.modules[f"{_PACK}.trainer_core.errors"]
