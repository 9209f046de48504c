"""The node Train Adapter: trains on a cache with the settings of other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ..host import comfy_host
from . import input_checks, sockets
from .setting_inputs import RUN_SETTINGS, keep_in_loras_input, section_values

if TYPE_CHECKING:
    from ..services.socket_values import AdapterChoice, BaseChoice, EncodedCache, SettingsChoice


class TrainAdapter(sockets.TrainingNode):
    """Trains an adapter and hands it to the graph."""

    SETTINGS = RUN_SETTINGS

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerTrain",
            display_name="Train Adapter",
            category="Adapter Trainer",
            description="Trains the adapter and hands it on to Load LoRA Model, KSampler and "
            "Save Adapter. Cancel finishes the step and saves its state; the next "
            "run goes on from there.",
            search_aliases=[
                "train lora",
                "lora training",
                "train lokr",
                "train loha",
                "fine-tune",
                "finetune",
                "dreambooth",
                "learning rate",
                "resume training",
            ],
            is_output_node=True,
            inputs=[
                *sockets.training_inputs(
                    "Connect Load Training Base: the model that you will generate with later."
                ),
                sockets.preview_vae_input(),
                *(each.input() for each in RUN_SETTINGS),
                io.Boolean.Input(
                    "resume",
                    default=True,
                    tooltip="Leave it on, to go on where a run stopped; switch it off to start "
                    "again from nothing, as a new version. Goes on with the run of this "
                    "name that is of the same base, images, adapter, batch and seed. "
                    "Other settings may have changed; a finished run only gets longer.",
                ),
                io.Combo.Input(
                    "resume_from",
                    options=[comfy_host.NEWEST, sockets.BEST, *comfy_host.checkpoint_names()],
                    default=comfy_host.NEWEST,
                    optional=True,
                    advanced=True,
                    tooltip="Leave it on newest unless the run was better at an earlier step. "
                    "best: where the loss on held-out images was lowest. With resume on: the "
                    "checkpoint to go on from, also of a finished run. The later ones of that run "
                    "are made again.",
                ),
                keep_in_loras_input(),
            ],
            outputs=sockets.run_outputs(),
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, name: str | None = None, resume_from: str | None = None) -> bool | str:
        """Refuse a bad name when the graph is queued; one that is linked comes later.

        Whether there is the checkpoint is left to `execute`, which says what to do.
        """
        from ..services.merged_run_config import check_run_name

        return input_checks.refusal(cls, check_run_name)

    @classmethod
    def execute(
        cls,
        base: BaseChoice,
        cache: EncodedCache,
        adapter: AdapterChoice,
        resume: bool,
        resume_from: str = comfy_host.NEWEST,
        settings: SettingsChoice | None = None,
        vae: Any = None,
        keep_in_loras: int = 0,
        **inputs: Any,
    ) -> io.NodeOutput:
        from ..services.graph_run import run_training

        comfy_host.require_libraries()
        begin = _resume_setting(resume, str(resume_from))
        own = {**section_values(RUN_SETTINGS, inputs), "resume": begin}
        node_id = str(cls.hidden.unique_id)
        handle, losses = run_training(
            node_id,
            base,
            cache,
            adapter=adapter,
            settings=settings,
            vae=vae,
            own=own,
            workflow=cls.workflow(),
            keep_in_loras=keep_in_loras,
        )
        return cls.hand_on(inputs["name"], handle, losses)


def _resume_setting(resume: bool, resume_from: str) -> str:
    """What the run file's ``resume`` says for the node's two inputs."""
    if resume_from in {"", comfy_host.NEWEST}:
        return "auto" if resume else "none"
    if resume and resume_from == sockets.BEST:
        return sockets.BEST
    if resume:
        return str(comfy_host.checkpoint_path(resume_from))
    raise InputError(
        f"resume is off and resume_from is {resume_from}",
        "resume switched on to go on from a checkpoint",
        f"Switch resume on, or set resume_from to {comfy_host.NEWEST}.",
    )
