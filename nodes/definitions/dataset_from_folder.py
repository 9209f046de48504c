"""The node Dataset From Folder: training images and captions of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from ..host.folders import folder_stamp
from . import input_checks, sockets
from .setting_inputs import (
    CAPTIONING,
    CLIPS,
    FRAMING,
    KEEPING,
    LAST,
    LATER,
    METADATA,
    READING,
    SettingInput,
    role_inputs,
    section_values,
)

_TITLE, _NO_FOLDER = "Dataset From Folder", "none"
_ORDINARY = (
    SettingInput("dataset.regularization.weight", "regularization_weight", optional=True),
    SettingInput("dataset.regularization.num_repeats", "regularization_repeats", optional=True),
)


class DatasetFolder(io.ComfyNode):
    """A folder with images and captions."""

    SETTINGS = (
        *READING,
        *KEEPING,
        *_ORDINARY,
        *CAPTIONING,
        *FRAMING,
        METADATA,
        *LATER,
        *LAST,
        *CLIPS,
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerDatasetFolder",
            display_name=_TITLE,
            category="Adapter Trainer",
            description="A folder with training images and a text file beside each. With "
            "control images: the folders control_images and training_images.",
            search_aliases=[
                "training images",
                "lora dataset",
                "captions",
                "trigger word",
                "regularization images",
                "masked training",
                "validation images",
                "kohya folder",
            ],
            inputs=[
                io.Combo.Input(
                    "folder",
                    options=comfy_host.dataset_names(),
                    tooltip="Choose the folder with your training images. It lies below "
                    "ComfyUI's datasets, input or output folder. More places: the key "
                    "'datasets' in extra_model_paths.yaml.",
                ),
                *(each.input() for each in READING),
                *(each.input() for each in KEEPING),
                io.Combo.Input(
                    "regularization_folder",
                    options=[_NO_FOLDER, *comfy_host.dataset_names()],
                    default=_NO_FOLDER,
                    optional=True,
                    tooltip=SettingInput("dataset.regularization.path").field.description,
                ),
                *(each.input() for each in (*_ORDINARY, *CAPTIONING, *FRAMING, METADATA)),
                *role_inputs(),
                *(each.input() for each in (*LATER, *LAST, *CLIPS)),
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def validate_inputs(cls, folder: str = "") -> bool | str:
        """Refuse folders that cannot be trained when the graph is queued."""
        return input_checks.refusal(cls, _check)

    @classmethod
    def fingerprint_inputs(
        cls, folder: str, regularization_folder: str = _NO_FOLDER, **inputs: Any
    ) -> str:
        """Changes with any file of the folders."""
        folders = [folder] + [regularization_folder] * (regularization_folder != _NO_FOLDER)
        return " ".join(folder_stamp(comfy_host.dataset_path(f)) for f in folders)

    @classmethod
    def execute(
        cls,
        folder: str,
        regularization_folder: str = _NO_FOLDER,
        role: Any = "train",
        weight: float = 1.0,
        **inputs: Any,
    ) -> io.NodeOutput:
        """Describe the dataset; it is read by Cache Embeddings."""
        from ..services.node_checks import check_dataset
        from ..services.socket_values import DatasetChoice

        values = _values(folder, regularization_folder, inputs)
        check_dataset(values)
        return io.NodeOutput(DatasetChoice(values, role, weight, made_by=_TITLE))


def _values(folder: str, regularization_folder: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The run file's ``dataset`` section."""
    ordinary = regularization_folder != _NO_FOLDER
    settings = [each for each in DatasetFolder.SETTINGS if ordinary or each not in _ORDINARY]
    values = section_values(settings, inputs).get("dataset", {})
    values["path"] = str(comfy_host.dataset_path(folder))
    if ordinary:
        second = str(comfy_host.dataset_path(regularization_folder))
        values.setdefault("regularization", {})["path"] = second
    return values


def _check(inputs: Mapping[str, Any]) -> None:
    from ..services.node_checks import check_dataset

    known = all(each.id in inputs or each.optional for each in (*READING, *KEEPING))
    # Without a policy that comes over a link, nobody knows what is a mistake.
    if "folder" in inputs and known:
        second = inputs.get("regularization_folder", _NO_FOLDER)
        check_dataset(_values(inputs["folder"], second, inputs))
