"""`RunConfig`: a whole run file, with its smaller sections."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from ..errors import ConfigError
from .adapter import AdapterConfig
from .dataset import CacheSection, DatasetSection
from .metrics import MetricsSection
from .prompt_lines import parse_prompt
from .section import Section, expectation, section_of, setting
from .training import TrainingSection

Variant = Literal["auto", "generate", "edit", "edit_plus", "layered", "fill"]


class BaseAdapter(Section):
    """An adapter file that is part of the base while it trains."""

    path: str = setting(
        ...,
        "Name an adapter file (.safetensors) of the base's family, or a folder that PEFT saved.",
        min_length=1,
    )
    strength: float = setting(
        1.0,
        "Leave it unless the file's author says otherwise. As in a LoRA loader; at 0 it does "
        "nothing.",
        ge=-10.0,
        le=10.0,
    )
    when: Literal["training", "always"] = setting(
        "always",
        "Take training for a training adapter, which is left out of samples; leave it on always "
        "for one that you will load when you generate, too.",
    )


class BaseSection(Section):
    """Where the frozen weights come from and how text is read."""

    path: str = setting(
        "embedded",
        "Choose the model that you will generate with later. 'embedded': the tiny one that ships "
        "with the trainer, to try things out; else a Diffusers folder, a single file of the "
        "denoiser as ComfyUI's users have them, or a hub id 'owner/name', which alone contacts "
        "the network. A file is .safetensors (bf16, fp16, fp32, fp8_e4m3fn, fp8_scaled, nvfp4, "
        "mxfp8, int8_tensorwise, convrot_w4a4 or asym_w4a8_int8) or .gguf (Q8_0, Q6_K, Q5_K, "
        "Q4_K, Q4_0 and other Q types).",
    )
    encoders: str | None = setting(
        None,
        "Set it when the base has no text encoder and no VAE, as a single file has none: a "
        "Diffusers folder that has both.",
        advanced=True,
    )
    variant: Variant = setting(
        "auto",
        "Leave it on auto unless it finds the wrong one. 'generate' makes images from text, "
        "'edit' changes one control image, 'edit_plus' several, 'layered' takes an image apart "
        "into layers, 'fill' fills its transparent area. 'auto': 'generate' without control "
        "images, else what the base says.",
        advanced=True,
    )
    adapters: list[BaseAdapter] = setting(
        [],
        "Leave it empty but for a distilled base, or to train on top of another adapter. Adapter "
        "files that are part of the base while it trains, as [{path: file.safetensors, strength: "
        "1.0, when: training}]; 'when: training' leaves one out of samples, 'when: always' keeps "
        "it. None is part of what is saved.",
        advanced=True,
    )
    distilled: Literal["refuse", "train"] = setting(
        "refuse",
        "Leave it on refuse. What happens with a base that was distilled to few steps and has no "
        "training adapter in 'adapters': 'train' trains it as it is, which undoes the "
        "distillation bit by bit.",
        advanced=True,
    )
    text_length: int | None = setting(
        None,
        "Leave it unset; lower it only to encode less of long captions. Most text tokens that the "
        "encoder yields. Unset: what ComfyUI uses for the family.",
        advanced=True,
        ge=1,
        le=4096,
    )


class PreviewSection(Section):
    """What is generated, how often, and with which seed."""

    every: int = setting(
        0,
        "Set it to watch the adapter learn; the lower, the more images and the longer the run. "
        "Steps between previews, the first before step 1 and one of the last step; 0: none.",
        ge=0,
    )
    prompts: list[str] = setting(
        [],
        "Write what you want to make, with the trigger word; add one without, to see what else "
        "changes. Each gives one image; flags behind it are its own: --w and --h pixels, --d seed, "
        "--s steps, --l guidance, --n negative prompt. Round brackets weigh words; in captions "
        "they are letters.",
    )
    controls: list[list[str]] = setting(
        [],
        "Set it when the base edits: control images (paths) for each prompt, in order; empty for "
        "text-to-image.",
    )
    width: int = setting(
        1024,
        "Lower it to wait less for previews; leave it near the size that you will generate at. "
        "Width of a preview in pixels.",
        ge=16,
        le=8192,
    )
    height: int = setting(
        1024,
        "Lower it to wait less for previews; leave it near the size that you will generate at. "
        "Height of a preview in pixels.",
        ge=16,
        le=8192,
    )
    steps: int = setting(
        20,
        "Lower it to wait less for previews; raise it when they look unfinished. Sampling steps "
        "of a preview.",
        ge=1,
        le=1000,
    )
    guidance: float = setting(
        1.0,
        "Set it as cfg in KSampler, or for a guidance-distilled base as its guidance. Guidance "
        "scale. 1 needs no second pass; guidance-distilled bases are conditioned on the value "
        "instead.",
        ge=0.0,
        le=100.0,
    )
    shift: float | None = setting(
        None,
        "Leave it unset. Shift of the noise levels of a preview's steps. Unset: of the base's own "
        "scheduler; inside ComfyUI of ComfyUI's.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    negative_prompt: str = setting(
        "",
        "Leave it empty unless you generate with one; it means nothing at guidance 1. What the "
        "second pass is told.",
        advanced=True,
    )
    layers: int | None = setting(
        None,
        "Leave it unset unless you want another number of layers than your images have. Layers of "
        "a preview, side by side behind the whole image; only of a base that takes images apart. "
        "Unset: as many as most of your images have.",
        advanced=True,
        ge=1,
        le=20,
    )
    seed: int = setting(
        0,
        "Leave it, so that previews can be compared; change it to see another try. Seed of the "
        "first prompt's noise; the next prompts count up.",
        ge=0,
    )

    def of_prompt(self, line: str, index: int) -> PreviewSection:
        """The settings of one preview, by the flags behind its prompt.

        Args:
            line: One of ``prompts``.
            index: Its place among them, by which seeds count up.

        Returns:
            A section with the prompt alone, without flags.

        Raises:
            ConfigError: When a flag is unknown or its value out of bounds.
        """
        text, said = parse_prompt(line)
        controls = [self.controls[index]] if index < len(self.controls) else []
        shared = self.model_dump() | {"seed": self.seed + index}
        try:
            return PreviewSection(**{**shared, **said, "prompts": [text], "controls": controls})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise ConfigError(
                f"preview.prompts: {name} is {said[name]!r} behind {text[:60]!r}",
                expectation(type(self).model_fields[name]),
                "Correct the value behind the flag, or take the flag out.",
            ) from error

    def largest(self) -> PreviewSection:
        """The settings of the preview with most pixels."""
        every = [self.of_prompt(line, index) for index, line in enumerate(self.prompts)]
        return max(every, key=lambda each: each.width * each.height, default=self)


BaseFormat = Literal["auto", "dense", "file", "fp8", "int8", "int8_rotated", "nf4"]


class MemorySection(Section):
    """Where the run computes and what it trades for memory."""

    device: str = setting(
        "auto",
        "Leave it on auto unless you have several GPUs. 'auto', or a torch device such as 'cuda', "
        "'cuda:1', 'mps', 'xpu' or 'cpu'.",
    )
    encoder_device: str | None = setting(
        None,
        "Leave it unset unless you have several GPUs. Where the text encoder and the VAE compute, "
        "such as 'cuda:1' or 'cpu'; unset: on memory.device, before the base comes.",
        advanced=True,
    )
    plan: Literal["auto", "fastest", "smallest", "off"] = setting(
        "auto",
        "Leave it on auto; take smallest when VRAM runs out. Chooses base_format, blocks_to_swap "
        "and others that are left open. 'auto': fast; the base is rounded only where worth it. "
        "'fastest': speed alone counts. 'smallest': the least VRAM. 'off': a dense base, nothing "
        "swapped, unless set.",
    )
    gradient_checkpointing: bool = setting(
        True,
        "Leave it on; switch it off to train faster when much VRAM is left. Lets blocks compute "
        "their activations again in the backward pass: less memory, about a third slower where "
        "all of them do.",
        advanced=True,
    )
    blocks_to_checkpoint: int | None = setting(
        None,
        "Leave it unset: the plan chooses; all where nothing is planned. Lower it to train faster "
        "when VRAM is left. How many blocks compute their activations again; the others keep "
        "them. Swapped blocks are always among them.",
        advanced=True,
        ge=0,
        le=1000,
    )
    checkpoint_inputs: Literal["auto", "device", "ram"] = setting(
        "auto",
        "Leave it on auto: the plan chooses; the device where nothing is planned. Take ram when "
        "VRAM runs out. Where the inputs of checkpointed blocks wait for the backward pass: on "
        "the 'device', or in 'ram', which sends them there and back in each step.",
        advanced=True,
    )
    blocks_to_swap: int | None = setting(
        None,
        "Leave it unset: 'plan' chooses. Raise it when VRAM runs out; steps get slower. "
        "Transformer blocks whose weights lie in RAM and come to the device when they are used, "
        "for bases larger than the VRAM. Needs gradient checkpointing.",
        advanced=True,
        ge=0,
        le=1000,
    )
    swap_slots: int = setting(
        2,
        "Leave it; take 1 when the last bit of VRAM is missing. Swapped blocks that are on the "
        "device at a time: 2 lets one come while another computes.",
        advanced=True,
        ge=1,
        le=16,
    )
    master: Literal["auto", "pinned", "pageable", "file"] = setting(
        "auto",
        "Leave it on auto; take file when RAM is too small. Where swapped blocks lie: 'pinned' "
        "RAM, which is read fastest, 'pageable' RAM, or only in the base's 'file', which is then "
        "read in each step. 'auto': by 'plan'; RAM, as much of it pinned as the system allows, "
        "unless it is too small.",
        advanced=True,
    )
    base_format: BaseFormat = setting(
        "auto",
        "Leave it on auto: 'plan' chooses. Take fp8 or nf4 when VRAM runs out. How the base's "
        "large weights are kept: 'dense', in the run's precision; 'file', as they are, 16 bits "
        "dense; 'fp8' and 'int8', one byte a weight; 'int8_rotated', outliers apart, for compute "
        "8bit; 'nf4', half a byte.",
        advanced=True,
    )
    compute: Literal["dense", "8bit"] = setting(
        "dense",
        "Leave it on dense; try 8bit with memory.compile, as it is slow without. Multiplies the "
        "base's weights as stored, in int8 or fp8; inputs and gradients are rounded to 8 bits, an "
        "error of 1 (int8) to 4 (fp8) percent a layer. 'dense': in the run's precision.",
        advanced=True,
    )
    compile: bool = setting(
        False,
        "Leave it off; switch it on for a long run on an NVIDIA GPU: it takes a minute or more at "
        "the start. Compiles the base's blocks with the adapter in them. Needs Triton; where it "
        "is missing, the run goes on without.",
        advanced=True,
    )
    threads: int | None = setting(
        None,
        "Leave it unset unless the computer must stay free for other work. CPU threads of torch. "
        "Unset: 1 for the embedded base (its matrices are too small to share), torch's own choice "
        "otherwise.",
        advanced=True,
        ge=1,
        le=1024,
    )


LayoutName = Literal["comfyui", "diffusers", "peft", "kohya", "lycoris"]


class OutputSection(Section):
    """Folder, name and form of the result."""

    dir: str = setting("output", "Set it to keep runs on another disk. Folder of all runs.")
    name: str = setting(
        "adapter",
        "Take a new name for each thing that you train: a run of the same name goes on, or "
        "becomes its next version. Name of the run and of the adapter file.",
        min_length=1,
    )
    layouts: list[LayoutName] = setting(
        ["comfyui"],
        "Leave it unless another program is to read the file. Layouts of the exported adapter "
        "files: 'comfyui', 'diffusers', 'peft' (a folder), 'kohya' (musubi's too), 'lycoris'.",
    )
    dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "Leave it on fp32, the most exact; take bf16 or fp16 for half the size. Number format of "
        "the exported adapter files.",
        advanced=True,
    )
    metadata: Literal["full", "shareable", "none"] = setting(
        "shareable",
        "Leave it on shareable, which gives away no paths, names, captions and prompts; take full "
        "for yourself. What the file says of its making: 'full' adds the whole run file and "
        "ComfyUI's workflow; 'none' writes only what loaders need.",
        advanced=True,
    )

    @field_validator("name")
    @classmethod
    def _composed(cls, value: str) -> str:
        # One name, however the keyboard or the disk has put its accents together.
        return unicodedata.normalize("NFC", value)


CONFIG_VERSION = 1
_STEP = re.compile(r"[0-9]{1,12}")


class RunConfig(Section):
    """Everything that decides a run.

    Between a run and its resumption the learning rate and what else shapes the optimizer's steps,
    the schedule, the precision, the length and the `output`, `preview` and `memory` sections may
    change; what decides which run it is must stay as it was.
    """

    family: str = setting(
        "qwen_image",
        "Set it to the architecture of your base, such as qwen_image; in ComfyUI it is read from "
        "the file.",
    )
    base: BaseSection = Field(default_factory=BaseSection, description="The frozen base model.")
    dataset: DatasetSection = Field(
        default_factory=DatasetSection, description="The training images."
    )
    cache: CacheSection = Field(
        default_factory=CacheSection, description="Encoded images and captions."
    )
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="The adapter.")
    training: TrainingSection = Field(
        default_factory=TrainingSection, description="Length and shape of the run."
    )
    preview: PreviewSection = Field(
        default_factory=PreviewSection, description="Images generated while the run trains."
    )
    metrics: MetricsSection = Field(
        default_factory=MetricsSection, description="What is measured while the run trains."
    )
    memory: MemorySection = Field(default_factory=MemorySection, description="Device and memory.")
    output: OutputSection = Field(default_factory=OutputSection, description="What is written.")
    resume: str = setting(
        "none",
        "Leave it on 'none' for a new version; 'latest' goes on with the newest checkpoint; "
        "'best' with the one whose loss on held-out images is lowest; "
        "'auto' with that of the version which the settings belong to, and starts a new one where "
        "a finished run would learn in another way; a number names the checkpoint of a step, a "
        "path a checkpoint's or a version's folder.",
    )
    seed: int = setting(
        0,
        "Leave it, so that the same settings train the same adapter; change it to try your luck "
        "again. Seed of all of the run's randomness.",
        ge=0,
        lt=2**63,
    )
    config_version: Literal[1] = setting(
        CONFIG_VERSION, "Leave it. Version of the run-file format."
    )

    @field_validator("resume", mode="before")
    @classmethod
    def _step_as_text(cls, value: object) -> object:
        return str(value) if type(value) is int and value >= 0 else value


def names_step(resume: str) -> bool:
    """Whether ``resume`` is the number of a step, and not a word or a path."""
    return _STEP.fullmatch(resume) is not None


def walk_settings(
    section: type[BaseModel] = RunConfig, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Go through every setting and section below a section, in the order of declaration.

    Args:
        section: Where to start.
        prefix: Its YAML path with a final dot, or nothing.

    Yields:
        YAML path and field; a section comes before its settings.
    """
    for name, field in section.model_fields.items():
        yield prefix + name, field
        inner = section_of(field)
        if inner is not None:
            yield from walk_settings(inner, f"{prefix}{name}.")


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by YAML path, nested as in a run file; no path may lead through another's value."""
    whole: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        place = whole
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return whole


def find_setting(path: str) -> FieldInfo | None:
    """The setting or section at a YAML path, or None."""
    return next((field for name, field in walk_settings() if name == path), None)
