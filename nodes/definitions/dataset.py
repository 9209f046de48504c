"""Nodes that say which pictures are trained."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ..host import comfy_host
from ..services import sockets
from ..services.setting_inputs import SettingInput, section_values

_READING = (
    SettingInput("dataset.layout"),
    SettingInput("dataset.resolution"),
    SettingInput("dataset.trigger_word"),
    SettingInput("dataset.caption_dropout"),
    SettingInput("dataset.num_repeats"),
    SettingInput("dataset.missing_caption", advanced=True),
    SettingInput("dataset.missing_image", advanced=True),
    SettingInput("dataset.missing_control", advanced=True),
    SettingInput("dataset.unreadable", advanced=True),
    SettingInput("dataset.animated", advanced=True),
    SettingInput("dataset.caption_extension"),
    SettingInput("dataset.max_aspect_ratio"),
    SettingInput("dataset.upscale"),
    SettingInput("dataset.control_area"),
)
_NO_FOLDER = "none"
_KEEPING = (
    SettingInput("dataset.preservation.share", "preservation", optional=True),
    SettingInput(
        "dataset.preservation.prompts", "preservation_prompts", advanced=True, optional=True
    ),
    SettingInput("dataset.preservation.count", "preservation_count", optional=True),
    SettingInput("dataset.preservation.steps", "preservation_steps", optional=True),
)
_ORDINARY = (
    SettingInput(
        "dataset.regularization.weight", "regularization_weight", advanced=True, optional=True
    ),
    SettingInput(
        "dataset.regularization.num_repeats",
        "regularization_repeats",
        advanced=True,
        optional=True,
    ),
)
_SIZING = tuple(
    each
    for each in _READING
    if each.id
    in {
        "resolution",
        "trigger_word",
        "caption_dropout",
        "num_repeats",
        "max_aspect_ratio",
        "upscale",
        "control_area",
    }
)


class DatasetFolder(io.ComfyNode):
    """A folder with pictures and captions."""

    SETTINGS = (*_READING, *_KEEPING, *_ORDINARY)

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerDatasetFolder",
            display_name="Dataset From Folder",
            category="Adapter Trainer",
            description="A folder with training pictures and a text file beside each. With "
            "control pictures: the folders control_images and training_images.",
            search_aliases=["training images", "lora dataset", "captions", "kohya folder"],
            inputs=[
                io.Combo.Input(
                    "folder",
                    options=comfy_host.dataset_names(),
                    tooltip="A folder below ComfyUI's datasets, input or output folder. More "
                    "places: the key 'datasets' in extra_model_paths.yaml.",
                ),
                *(each.input() for each in _READING),
                *(each.input() for each in _KEEPING),
                io.Combo.Input(
                    "regularization_folder",
                    options=[_NO_FOLDER, *comfy_host.dataset_names()],
                    default=_NO_FOLDER,
                    optional=True,
                    tooltip=SettingInput("dataset.regularization.path").field.description,
                ),
                *(each.input() for each in _ORDINARY),
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def validate_inputs(cls, folder: str, regularization_folder: str = _NO_FOLDER) -> bool:
        """Leave the check to `execute`, which says what to do."""
        return True

    @classmethod
    def fingerprint_inputs(
        cls, folder: str, regularization_folder: str = _NO_FOLDER, **given: Any
    ) -> str:
        """Changes with any file of the folders."""
        folders = [folder] + [regularization_folder] * (regularization_folder != _NO_FOLDER)
        return " ".join(comfy_host.folder_stamp(comfy_host.dataset_path(f)) for f in folders)

    @classmethod
    def execute(
        cls, folder: str, regularization_folder: str = _NO_FOLDER, **given: Any
    ) -> io.NodeOutput:
        """Describe the dataset; it is read by Cache Embeddings."""
        ordinary = regularization_folder != _NO_FOLDER
        settings = (*_READING, *_KEEPING, *(_ORDINARY if ordinary else ()))
        values = section_values(settings, given)["dataset"]
        values["path"] = str(comfy_host.dataset_path(folder))
        if ordinary:
            second = str(comfy_host.dataset_path(regularization_folder))
            values.setdefault("regularization", {})["path"] = second
        return io.NodeOutput(sockets.DatasetChoice(values))


class DatasetImages(io.ComfyNode):
    """Pictures and captions that other nodes made."""

    SETTINGS = (*_SIZING, *_KEEPING)

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerDatasetImages",
            display_name="Dataset From Images",
            category="Adapter Trainer",
            description="Training pictures and captions from other nodes, such as Load Image-Text "
            "(from Folder). They are kept as files in the output folder.",
            search_aliases=["training images", "image list", "lora dataset"],
            is_input_list=True,
            inputs=[
                io.Image.Input("images", tooltip="The pictures, a list or a batch."),
                io.String.Input(
                    "texts", force_input=True, tooltip="One caption for each picture, or one."
                ),
                io.Image.Input(
                    "controls",
                    optional=True,
                    tooltip="For bases that edit: one control picture for each picture.",
                ),
                *(each.input() for each in (*_SIZING, *_KEEPING)),
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def execute(
        cls, images: list[Any], texts: list[str], controls: list[Any] | None = None, **given: Any
    ) -> io.NodeOutput:
        """Keep the pictures as files and describe them as a folder."""
        from ..services.picture_folder import write_picture_folder

        _refuse_others(given)
        folder = write_picture_folder(
            comfy_host.output_folder() / "pictures", images, texts, controls or []
        )
        first = {name: value[0] for name, value in given.items()}
        values = section_values((*_SIZING, *_KEEPING), first)["dataset"]
        layout = "paired" if controls else "flat"
        # A caption may be empty on purpose; a folder would call that a mistake.
        values |= {"path": str(folder), "layout": layout, "missing_caption": "empty"}
        return io.NodeOutput(sockets.DatasetChoice(values))


def _refuse_others(given: dict[str, Any]) -> None:
    # ComfyUI hands on every link, also one to an input that a node does not have.
    others = sorted(given.keys() - {each.id for each in (*_SIZING, *_KEEPING)})
    if others:
        raise InputError(
            f"{', '.join(others)} connected to Dataset From Images",
            "images, texts and controls: whole pictures are trained, without masks",
            "Disconnect it. To train a part of the pictures, crop them before this node.",
        )
