"""Files of the nodes that need no ComfyUI, loaded without the package's start, which does."""

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


def _fixture(place: str, name: str = "") -> object:
    """A fixture with this name, or that of a file, which gives its module."""

    @pytest.fixture(scope="session", name=name or place.rpartition(".")[2])
    def module() -> ModuleType:
        return pack_module(place)

    return module


_folders = _fixture("host.folders")
_unchanged = _fixture("host.unchanged_inputs")
_image_folder = _fixture("services.datasets.image_folder")
_run_config = _fixture("services.merged_run_config", "run_config")
_expert_models = _fixture("services.expert_models")
_combined_datasets = _fixture("services.datasets.combined", "combined_datasets")
_rerun_stamps = _fixture("services.rerun_stamps")
_run_history = _fixture("services.panel.history", "run_history")
_run_state = _fixture("services.panel.run_states", "run_state")
_graph_words = _fixture("services.graph_words")
_prompt_settings = _fixture("services.panel.prompt_settings")
_dataset_upload = _fixture("services.dataset_dialog.upload", "dataset_upload")
_dataset_report = _fixture("services.dataset_dialog.report", "dataset_report")
_caption_edits = _fixture("services.dataset_dialog.caption_edits")
_caption_proposals = _fixture("services.dataset_dialog.caption_proposals")


@pytest.fixture(scope="session")
def allowed() -> type:
    """`AllowedFolders`, in the pack's own copy of the library."""
    return pack_module("services.dataset_dialog.caption_edits").AllowedFolders


@pytest.fixture(scope="session")
def errors(folders: ModuleType) -> ModuleType:
    """The errors as these files know them: the pack's own copy of the library."""
    return sys.modules[f"{_PACK}.trainer_core.errors"]


_run_curves = _fixture("services.runs_tab.curves", "run_curves")
