"""Nodes that write adapter files for ComfyUI and other programs."""

from __future__ import annotations

from typing import Any, get_args

from comfy_api.latest import io

from ...trainer_core.config.describe import choices_of, find_setting
from ...trainer_core.config.output import LayoutName
from ...trainer_core.errors import InputError
from ..host import comfy_host
from ..services import sockets
from ..services.lora_files import NO_FILE, chosen_lora, lora_choices, lora_stamp
from ..services.setting_inputs import family_choices

_LAYOUTS = get_args(LayoutName)
_LAYOUT_HELP = (
    "comfyui: for ComfyUI's own loaders. diffusers: for Diffusers. peft: a folder for PEFT. kohya: "
    "names of kohya's scripts and of musubi. lycoris: LyCORIS's names. ComfyUI loads the last two "
    "as well."
)


def _form_inputs() -> list[io.Input]:
    """Inputs that came later; in saved workflows they stand behind all others."""
    dtype = find_setting("output.dtype")
    return [
        io.Boolean.Input(
            "fused",
            default=False,
            optional=True,
            advanced=True,
            tooltip="Layout comfyui: write q, k and v as ComfyUI's one layer, for its bypass "
            "loaders, which drop slices. Layout kohya always does.",
        ),
        io.Combo.Input(
            "dtype",
            options=["keep", *choices_of(dtype)] if dtype else ["keep"],
            default="keep",
            optional=True,
            advanced=True,
            tooltip="Number format of the file. keep: that of the adapter.",
        ),
    ]


class SaveAdapter(io.ComfyNode):
    """Writes a trained adapter into the loras folder."""

    SETTINGS = ()

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerSave",
            display_name="Save Adapter",
            category="Adapter Trainer",
            description="Writes the adapter into ComfyUI's loras folder, where Load LoRA lists it "
            "after a refresh (key R).",
            search_aliases=["save lora", "export lora", "export adapter"],
            is_output_node=True,
            inputs=[
                sockets.Run.Input(
                    "run", optional=True, tooltip="A run; its facts go into the file's header."
                ),
                sockets.LoraModel.Input(
                    "lora",
                    optional=True,
                    tooltip="An adapter without a run, such as a converted one.",
                ),
                io.String.Input(
                    "name", default="my_adapter", tooltip="Name of the file; folders with /."
                ),
                io.Combo.Input(
                    "layout", options=list(_LAYOUTS), default="comfyui", tooltip=_LAYOUT_HELP
                ),
                io.Boolean.Input(
                    "overwrite",
                    default=False,
                    tooltip="Replace a file of this name; off: a number is added.",
                ),
                *_form_inputs(),
            ],
            outputs=[io.String.Output(display_name="path")],
        )

    @classmethod
    def execute(
        cls,
        name: str,
        layout: str,
        overwrite: bool,
        run: sockets.RunHandle | None = None,
        lora: Any = None,
        fused: bool = False,
        dtype: str = "keep",
    ) -> io.NodeOutput:
        """Write the file."""
        from ..services.adapter_files import FileForm, write_adapter_file

        if (run is None) == (lora is None):
            raise InputError(
                "both a run and a lora" if run else "neither a run nor a lora",
                "one of the two",
                "Connect the output run of Train Adapter, or a LORA_MODEL.",
            )
        form = FileForm(layout, fused, dtype)
        source = run.adapter if run else lora
        path, _ = write_adapter_file(source, name, form, overwrite=overwrite)
        return io.NodeOutput(str(path))


def _approximation_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "approximate",
            options=["none", "lora", "lokr"],
            default="none",
            optional=True,
            advanced=True,
            tooltip="What is written where a layout cannot hold the adapter. lora: the nearest "
            "LoRA of the rank. lokr: the nearest Kronecker product of q, k and v together. The "
            "error is shown.",
        ),
        io.Int.Input(
            "rank",
            default=0,
            min=0,
            max=4096,
            optional=True,
            advanced=True,
            tooltip="Highest rank of the nearest LoRA; 0: none is named, which does only where an "
            "exact one exists.",
        ),
        io.Combo.Input(
            "extras",
            options=["keep", "drop"],
            default="keep",
            optional=True,
            advanced=True,
            tooltip="Trained biases and norms of other programs. drop: leave them out, for layouts "
            "that have no place for them.",
        ),
        sockets.Base.Input(
            "base",
            optional=True,
            tooltip="The base, where its weights are needed: for DoRA of the output axis, which "
            "ComfyUI reads wrongly. The difference that it makes is written then, or with "
            "approximate its nearest LoRA.",
        ),
    ]


class ConvertAdapter(io.ComfyNode):
    """Rewrites an adapter file in another layout."""

    SETTINGS = ()

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerConvert",
            display_name="Convert Adapter",
            category="Adapter Trainer",
            description="Reads an adapter and writes it in another layout, into the loras folder.",
            search_aliases=["convert lora", "lora format", "kohya", "diffusers lora"],
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "file",
                    options=lora_choices(),
                    default=NO_FILE,
                    tooltip="A file of the loras folder; none: the lora input.",
                ),
                sockets.LoraModel.Input("lora", optional=True, tooltip="An adapter of the graph."),
                io.Combo.Input(
                    "layout", options=list(_LAYOUTS), default="comfyui", tooltip=_LAYOUT_HELP
                ),
                io.Combo.Input(
                    "family",
                    options=family_choices(),
                    default="auto",
                    tooltip="Architecture of the adapter's base. auto: read from the file.",
                ),
                io.String.Input(
                    "name", default="converted", tooltip="Name of the new file; folders with /."
                ),
                io.Boolean.Input(
                    "overwrite",
                    default=False,
                    tooltip="Replace a file of this name; off: a number is added.",
                ),
                *_form_inputs(),
                *_approximation_inputs(),
            ],
            outputs=[
                sockets.LoraModel.Output(display_name="lora"),
                io.String.Output(display_name="path"),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, file: str) -> bool:
        """Leave the check to `execute`, which says what to do."""
        return True

    @classmethod
    def fingerprint_inputs(cls, file: str, **given: Any) -> str:
        """Changes with the file."""
        return lora_stamp(file)

    @classmethod
    def execute(
        cls,
        file: str,
        layout: str,
        family: str,
        name: str,
        overwrite: bool,
        lora: Any = None,
        **form: Any,
    ) -> io.NodeOutput:
        """Read, convert, write."""
        from ..services.adapter_files import (
            FileForm,
            adapter_tensors,
            weights_file,
            write_adapter_file,
        )

        comfy_host.require_libraries()
        source = chosen_lora(file, lora)
        given = FileForm(layout, **form)
        path, said = write_adapter_file(source, name, given, family=family, overwrite=overwrite)
        comfy_host.show_text(cls.hidden.unique_id, said)
        return io.NodeOutput(adapter_tensors(weights_file(path)), str(path))
