"""The node Train LoRA (Quick): trains by a handful of answers; the rest follows from a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ...trainer_core.config.section import choices_of
from ..host import comfy_host, prompt_under_check
from ..host.folders import file_stamp, folder_stamp
from . import input_checks, sockets
from .base_adapters import training_adapter_input
from .setting_inputs import SettingInput

_GOALS = ("person", "style", "object", "edit", "motion")
_QUALITIES = ("fast", "standard", "thorough")


class TrainQuick(sockets.TrainingNode):
    """Trains an adapter from a folder of images and a few answers."""

    SETTINGS = ()

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerQuick",
            display_name="Train LoRA (Quick)",
            category="Adapter Trainer",
            description="Choose a folder with your images, a base model and what you are "
            "teaching, and press Run: everything else is chosen for your images "
            "and your GPU, and the panel says why. Cancel keeps what was learned, "
            "and the next Run goes on from there.",
            search_aliases=[
                "train lora",
                "lora training",
                "quick",
                "easy",
                "fine-tune",
                "finetune",
                "dreambooth",
            ],
            is_output_node=True,
            inputs=[
                *_questions(),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip="Connect the model that you generate with, whatever loader made it; "
                    "base is then not asked. Leave it open to choose a base by its file.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="Connect the CLIP that you generate with; leave it open for the "
                    "embedded base, which has its own. It reads captions and prompts.",
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Connect the VAE that you generate with; leave it open for the "
                    "embedded base, which has its own. It encodes your images and "
                    "decodes previews.",
                ),
                *_advanced(),
            ],
            outputs=sockets.run_outputs(),
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, folder: str = "") -> bool | str:
        """Refuse what names and captions say when the graph is queued; links come later."""
        return input_checks.refusal(cls, _check)

    @classmethod
    def fingerprint_inputs(
        cls, folder: str, base: str, name: str | None = "", **inputs: Any
    ) -> str:
        """Changes with images and base, and when the adapter was deleted or is to go on."""
        from ..services.rerun_stamps import train_stamp

        path = comfy_host.base_path(base)
        stamp = "" if path == comfy_host.EMBEDDED else file_stamp(path)
        images = folder_stamp(comfy_host.dataset_path(folder))
        return f"{images} {stamp} {train_stamp(str(cls.hidden.unique_id), name)}"

    @classmethod
    def execute(
        cls,
        model: Any = None,
        clip: Any = None,
        vae: Any = None,
        other_expert: Any = None,
        clip_vision: Any = None,
        audio_vae: Any = None,
        **inputs: Any,
    ) -> io.NodeOutput:
        from ..services.quick.plan import Answers, Connected
        from ..services.quick.run import run_quick

        comfy_host.require_libraries()
        node_id = str(cls.hidden.unique_id)
        answers = Answers(
            **inputs, loader=prompt_under_check.loader_of(cls.hidden.prompt, node_id, "model")
        )
        connected = Connected(
            model, clip, vae, other_expert=other_expert, vision=clip_vision, audio=audio_vae
        )
        handle, losses = run_quick(node_id, answers, connected, cls.workflow())
        return cls.hand_on(inputs["name"], handle, losses)


def _check(inputs: Mapping[str, Any]) -> None:
    from ..services.quick.plan import Answers, check_answers

    if {"folder", "base", "goal", "trigger_word"} <= inputs.keys():
        linked = prompt_under_check.links(comfy_host.current_node())
        name = inputs.get("name", "")
        answers = Answers(
            inputs["folder"],
            inputs["base"],
            inputs["goal"],
            quality="",
            name=name,
            trigger_word=inputs["trigger_word"],
        )
        sockets_of_models = ("model", "clip", "vae")
        check_answers(answers, [socket for socket in sockets_of_models if socket not in linked])


def _questions() -> list[io.Input]:
    """What everybody is asked."""
    kind = SettingInput("adapter.kind").field
    kinds = sorted(choices_of(kind), key=lambda name: name != kind.default)
    return [
        io.Combo.Input(
            "folder",
            options=comfy_host.dataset_names(),
            tooltip="Choose the folder with your images: 10 to 40 good ones are enough. It "
            "lies below ComfyUI's input, output or datasets folder. A text file beside "
            "an image says what it shows.",
        ),
        io.Combo.Input(
            "base",
            options=comfy_host.base_names(),
            default=comfy_host.EMBEDDED,
            tooltip="Choose the model that you will generate with later. Take the full model; one "
            "made for few steps (turbo, schnell) needs a training_adapter. embedded: the "
            "tiny one that comes along, to try everything without a download.",
        ),
        io.Combo.Input(
            "goal",
            options=list(_GOALS),
            default=_GOALS[0],
            tooltip="Choose what you are teaching. person: someone's face and body. style: how "
            "images look, whatever they show. object: one thing, animal or product. "
            "edit: a change of images, from pairs of before and after; needs an edit "
            "model. motion: a movement or a camera move, from clips; needs a video model.",
        ),
        io.Combo.Input(
            "quality",
            options=list(_QUALITIES),
            default=_QUALITIES[1],
            tooltip="Choose how much time it may take. fast: a first look. standard: for most. "
            "thorough: longer and with finer detail, when the images are good.",
        ),
        io.String.Input(
            "name",
            default="",
            tooltip="Leave it empty to name the result after the folder; set it when you train "
            "the same folder in another way.",
        ),
        io.String.Input(
            "trigger_word",
            default="",
            tooltip="Set it to a made-up word, such as ohwx, that calls up what was learned: "
            "write it in your prompts later. Leave it empty for a style that is always "
            "on. For a person or an object it replaces missing captions.",
        ),
        io.Combo.Input(
            "kind",
            options=["auto", *kinds],
            default="auto",
            advanced=True,
            tooltip="Leave it on auto unless another program needs a certain kind, such as lora. "
            "It is the form that the adapter has in its file.",
        ),
    ]


def _advanced() -> list[io.Input]:
    """What is left alone at first."""
    seed = SettingInput("seed", optional=True).input()
    seed.advanced = True
    return [
        io.String.Input(
            "prompts",
            default="",
            multiline=True,
            optional=True,
            advanced=True,
            tooltip="Leave it empty for prompts that fit what you teach, with your trigger "
            "word; write your own to see something certain, one per line. One preview "
            "is generated for each.",
        ),
        io.Int.Input(
            "steps",
            default=0,
            min=0,
            max=1_000_000,
            optional=True,
            advanced=True,
            tooltip="Leave it at 0: your number of images and the quality say how long to "
            "train. Raise it when previews still get better at the end. Optimizer "
            "steps.",
        ),
        seed,
        io.Boolean.Input(
            "resume",
            default=True,
            optional=True,
            advanced=True,
            tooltip="Leave it on, to go on where a run of this name stopped; switch it off to "
            "start again from nothing. A run of other images or of another base is left as it is.",
        ),
        training_adapter_input(),
        *sockets.model_inputs(),
    ]
