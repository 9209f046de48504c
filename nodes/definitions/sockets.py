"""The sockets of the pack's nodes, and inputs that several share: a run's, an adapter file's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ..host import comfy_host
from ..host.clip_and_vae_inputs import MUTED
from ..host.folders import file_stamp
from ..services.expert_models import AUTO, ROLES, SWITCH_AT

if TYPE_CHECKING:
    from ..services.socket_values import RunHandle

Dataset = io.Custom("ADAPTER_TRAINER_DATASET")
Base = io.Custom("ADAPTER_TRAINER_BASE")
Previews = io.Custom("ADAPTER_TRAINER_PREVIEWS")
Cache = io.Custom("ADAPTER_TRAINER_CACHE")
Adapter = io.Custom("ADAPTER_TRAINER_ADAPTER")
Settings = io.Custom("ADAPTER_TRAINER_SETTINGS")
Run = io.Custom("ADAPTER_TRAINER_RUN")
LoraModel = io.Custom("LORA_MODEL")
LossMap = io.Custom("LOSS_MAP")

NO_FILE = "none"
"""The choice that stands for no file."""

BEST = "best"
"""The choice of the checkpoint with the lowest loss on held-out images."""


def preview_vae_input() -> io.Input:
    """The VAE of a node that trains on encoded images."""
    return io.Vae.Input(
        "vae",
        optional=True,
        tooltip="Connect it to see previews; without it there are none. Leave it open for the "
        "embedded base, which has its own. It decodes previews.",
    )


def training_inputs(base: str) -> list[io.Input]:
    """The sockets that say what is trained; `base` is the help text of the first."""
    return [
        Base.Input("base", tooltip=base),
        Cache.Input("cache", tooltip="Connect Cache Embeddings: the encoded dataset."),
        Adapter.Input("adapter", tooltip="Connect Adapter Config: what is trained."),
        Settings.Input(
            "settings",
            optional=True,
            tooltip="Leave it open for the defaults; connect Training Settings to change them.",
        ),
    ]


def model_inputs() -> list[io.Input]:
    """What belongs to a MODEL that is trained: the other of two experts, its eyes, its sound."""
    return [
        io.Combo.Input(
            "expert",
            options=list(ROLES),
            default=AUTO,
            optional=True,
            advanced=True,
            tooltip="Leave it on auto, which goes by the file's name. Of a model with an expert "
            "for high noise and one for low noise (Wan 2.2 A14B) each is trained by a node of its "
            "own, at its own levels of noise.",
        ),
        io.Model.Input(
            "other_expert",
            optional=True,
            tooltip="Connect the other expert of Wan 2.2 A14B, with which previews are sampled as "
            "in your workflow. It is not trained. Behind the adapter that the other node has "
            "trained it shows both.",
        ),
        io.Float.Input(
            "switch_at",
            default=SWITCH_AT,
            min=0.05,
            max=0.95,
            step=0.05,
            optional=True,
            advanced=True,
            tooltip="Leave it at 0.5, as ComfyUI's workflows have it; set it where yours differs. "
            "Share of the sampling steps that the expert for high noise makes.",
        ),
        io.ClipVision.Input(
            "clip_vision",
            optional=True,
            tooltip="Connect Load CLIP Vision for a model of videos that sees the first frame "
            "through it: Wan 2.1 I2V, HunyuanVideo 1.5. Others need none.",
        ),
        io.Vae.Input(
            "audio_vae",
            optional=True,
            tooltip="Connect Load LTXV Audio VAE to train clips of LTX-2 with their sound. Left "
            "open, clips are trained without it. MiniMax-H3 needs its own: Load VAE.",
        ),
    ]


def run_outputs() -> list[io.Output]:
    """What a run gives to the graph."""
    return [
        LoraModel.Output(display_name="lora"),
        LossMap.Output(display_name="loss"),
        io.Image.Output(display_name="previews"),
        Run.Output(display_name="run"),
    ]


class TrainingNode(io.ComfyNode):
    """A node that trains, and hands on what it has trained."""

    @classmethod
    def fingerprint_inputs(cls, name: str | None, **inputs: Any) -> str:
        """Changes when the adapter that this node handed on was deleted, or is to go on."""
        from ..services.rerun_stamps import train_stamp

        return train_stamp(str(cls.hidden.unique_id), name)

    @classmethod
    def workflow(cls) -> dict[str, object]:
        """What is kept with the run of the graph that runs."""
        return comfy_host.queued_graph(cls.hidden.prompt, cls.hidden.extra_pnginfo)

    @classmethod
    def hand_on(
        cls, name: str, handle: RunHandle, losses: Sequence[float], *more: Any
    ) -> io.NodeOutput:
        """A run as `run_outputs`, and further values."""
        from ..services.graph_run import run_outputs, shown_run
        from ..services.rerun_stamps import ADAPTERS

        ADAPTERS.hand_on(str(cls.hidden.unique_id), name, handle.adapter)
        return io.NodeOutput(*run_outputs(handle, losses), *more, ui=shown_run(handle))


class FileOrLora(io.ComfyNode):
    """A node that reads an adapter: a file of the loras folder, or one of the graph."""

    @classmethod
    def file_input(cls) -> io.Input:
        """The choice of the file."""
        help_text = "Choose a file of the loras folder, or leave it on none and connect lora."
        return io.Combo.Input("file", options=lora_choices(), default=NO_FILE, tooltip=help_text)

    @classmethod
    def lora_input(cls) -> io.Input:
        """The socket in the file's place."""
        return LoraModel.Input(
            "lora",
            optional=True,
            tooltip="Connect an adapter of the graph in place of a file; set file to none then.",
        )

    @classmethod
    def validate_inputs(cls, file: str) -> bool:
        """Leave the check to `execute`, which says what to do."""
        return True

    @classmethod
    def fingerprint_inputs(cls, file: str, **inputs: Any) -> str:
        """Changes with the file."""
        return lora_stamp(file)


def lora_choices() -> list[str]:
    """What a combo box of adapter files offers; no file comes first."""
    return [NO_FILE, *comfy_host.lora_names()]


def lora_stamp(file: str) -> str:
    """Changes with the chosen file."""
    if file == NO_FILE:
        return NO_FILE
    return file_stamp(str(comfy_host.lora_path(file)))


def chosen_lora(file: str, lora: Any) -> Any:
    """The chosen file's path, or the graph's adapter.

    Raises:
        InputError: When both or neither is given, or there is no such file.
    """
    if (file == NO_FILE) == (lora is None):
        raise InputError(
            "neither a file nor a lora" if lora is None else "both a file and a lora",
            "one of the two",
            "Choose a file, or set file to none and connect a LORA_MODEL."
            + (f" {MUTED}" if lora is None else ""),
        )
    return lora if file == NO_FILE else comfy_host.lora_path(file)
