"""`RunConfig`: a whole run file, with the sections that have few rules."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, field_validator
from pydantic.fields import FieldInfo

from ..filesystem.file_names import EXPECTED, name_mistake
from .adapter import AdapterConfig
from .dataset import DatasetSection
from .memory import RECOVERABLE, BaseFormat, MemorySection
from .preview import PreviewSection, Variant
from .section import Other, Problem, Resumed, Section, section, section_of, setting, traits_of
from .training import TrainingSection
from .yaml_dialect import value_in_words


class BaseAdapter(Section):
    """An adapter file that is part of the base while it trains."""

    path: str = setting(
        ...,
        "Name an adapter file (.safetensors) of the base's family, or a folder that PEFT saved.",
        min_length=1,
        path="anchored",
    )
    strength: float = setting(
        1.0,
        "Leave it unless the file's author says otherwise. As in a LoRA loader; at 0 it does "
        "nothing.",
        ge=-10.0,
        le=10.0,
    )
    when: Literal["training", "always", "quantized"] = setting(
        "always",
        "Take training for a training adapter, which is left out of samples, and quantized for an "
        "accuracy-recovery adapter of memory.base_format uint4 or uint3; leave it on always for "
        "one that you will load when you generate, too.",
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
        path="anchored",
        no_paths=("embedded",),
        resumed="free",
    )
    encoders: str | None = setting(
        None,
        "Set it when the base has no text encoder and no VAE, as a single file has none: a "
        "Diffusers folder that has both.",
        advanced=True,
        path="anchored",
        resumed="free",
    )
    other_expert: str | None = setting(
        None,
        "Set it to get previews of one of the two files of Wan 2.2 A14B: the other one, which "
        "samples its own noise levels and is not trained. A Diffusers folder has both.",
        advanced=True,
        path="anchored",
        resumed="free",
    )
    variant: Variant = setting(
        "auto",
        "Leave it on auto unless it finds the wrong one. 'generate' makes images from text, "
        "'edit' changes one control image, 'edit_plus' several, 'layered' takes an image apart "
        "into layers, 'fill' fills its transparent area. 'auto': 'generate' without control "
        "images, else what the base says.",
        advanced=True,
        not_with=Other(
            "dataset.slider.positive",
            of=("edit", "edit_plus", "layered", "fill"),
            because="a slider needs a base that generates from a prompt alone",
        ),
    )
    adapters: list[BaseAdapter] = setting(
        [],
        "Leave it empty but for a distilled base, or to train on top of another adapter. Adapter "
        "files that are part of the base while it trains, as [{path: file.safetensors, strength: "
        "1.0, when: training}]; 'when: training' leaves one out of samples. None is part of what "
        "is saved.",
        advanced=True,
        resumed="free",
    )
    distilled: Literal["refuse", "train"] = setting(
        "refuse",
        "Leave it on refuse. What happens with a base that was distilled to few steps and has no "
        "training adapter in 'adapters': 'train' trains it as it is, which undoes the "
        "distillation bit by bit.",
        advanced=True,
        resumed="free",
    )
    text_length: int | None = setting(
        None,
        "Leave it unset; lower it only to encode less of long captions. Most text tokens that the "
        "encoder yields. Unset: what ComfyUI uses for the family.",
        advanced=True,
        ge=1,
        le=4096,
    )

    def problems(self, base_format: BaseFormat) -> Iterator[Problem]:
        """What contradicts the format that the base is kept in."""
        for number, each in enumerate(self.adapters):
            place = f"base.adapters.{number}"
            named = re.search(r"uint\d", Path(each.path).name)
            if each.when == "quantized" and base_format not in RECOVERABLE:
                yield Problem(
                    f"{place}.when is quantized and memory.base_format is {base_format}",
                    "the format whose rounding the adapter repairs; any other, and dense weights, "
                    "it makes worse",
                    f"Set memory.base_format to {' or '.join(RECOVERABLE)}, whichever the adapter "
                    f"was made for, or leave {place} out.",
                )
            elif each.when == "quantized" and named and named[0] != base_format:
                yield Problem(
                    f"{place} is {Path(each.path).name} and memory.base_format is {base_format}",
                    "the format whose rounding the adapter repairs",
                    f"Set memory.base_format to {named[0]}, or rename the file if its name errs.",
                )


class CacheSection(Section):
    """Where encoded images and captions are kept between runs."""

    dir: str | None = setting(
        None,
        "Set it to keep encoded images and captions on another disk. Folder of the cache. Unset: "
        "'cache' in the output folder.",
        advanced=True,
        path="anchored",
    )
    manifest: str | None = setting(
        None,
        "Set it to train without the images and without text encoders, such as on another "
        "machine. A finished cache: the file '*.cache.json' that Save Run File or the verb cache "
        "wrote; it is trained as it is.",
        advanced=True,
        path="anchored",
    )
    verify: bool = setting(
        False,
        "Leave it off; switch it on once when the disk may have damaged files. Reads every cached "
        "file at the start and encodes damaged ones again.",
        advanced=True,
    )
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "Leave it on auto. Number format of cached latents and texts. 'auto': that of the "
        "encoders. 'fp32' is exact and largest; 'bf16' and 'fp16' take half of that; 'fp16' fails "
        "where an encoder's numbers are too large for it, and says so.",
        advanced=True,
    )
    batch_size: int = setting(
        1,
        "Leave it at 1; raise it to encode faster on a GPU with room. How many images of a size, "
        "and how many captions, are encoded at a time.",
        advanced=True,
        ge=1,
        le=256,
    )
    max_gb: float | None = setting(
        None,
        "Leave it unset, or set it when the disk gets full. The most gigabytes that the cache may "
        "take: what was not used for longest is removed at the end of encoding, never what this "
        "run or another one at work needs.",
        advanced=True,
        gt=0.0,
        le=1e5,
    )


class MetricsSection(Section):
    """What is written down beside loss and learning rate."""

    trackers: list[Literal["tensorboard", "wandb"]] = setting(
        ["tensorboard"],
        "Leave it, or add wandb, which sends the run's numbers and preview images to Weights & "
        "Biases, prompts and paths only where output.metadata is full. Who is told besides "
        "metrics.jsonl; one that is not installed is left out.",
        advanced=True,
    )
    sigma_bands: int = setting(
        4,
        "Leave it. Into how many bands of equal width noise levels are put for the loss by sigma.",
        advanced=True,
        ge=1,
        le=20,
    )
    norms_every: int = setting(
        50,
        "Leave it. Steps between two measurements of how large the adapter is beside the base's "
        "weights, by block, which warn of one that does nothing or too much; 0: never.",
        advanced=True,
        ge=0,
    )


LayoutName = Literal["comfyui", "diffusers", "peft", "kohya", "lycoris"]


class OutputSection(Section):
    """Folder, name and form of the result."""

    dir: str = setting(
        "output",
        "Set it to keep runs on another disk. Folder of all runs.",
        path="anchored",
        resumed="free",
    )
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

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself."""
        mistake = name_mistake(self.name)
        if mistake:
            yield Problem(
                f"output.name is {value_in_words(self.name)} ({mistake})",
                EXPECTED,
                "Choose another output.name.",
            )
        if not self.layouts or len(set(self.layouts)) != len(self.layouts):
            yield Problem(
                f"output.layouts is {self.layouts}",
                "at least one layout, each once",
                "Set output.layouts to [comfyui], or to several, such as [comfyui, diffusers].",
            )


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
    base: BaseSection = section(BaseSection, "The frozen base model.")
    dataset: DatasetSection = section(DatasetSection, "The training images.")
    cache: CacheSection = section(CacheSection, "Encoded images and captions.", resumed="free")
    adapter: AdapterConfig = section(AdapterConfig, "The adapter.")
    training: TrainingSection = section(TrainingSection, "Length and shape of the run.")
    preview: PreviewSection = section(
        PreviewSection, "Images generated while the run trains.", resumed="around"
    )
    metrics: MetricsSection = section(
        MetricsSection, "What is measured while the run trains.", resumed="around"
    )
    memory: MemorySection = section(MemorySection, "Device and memory.", resumed="around")
    output: OutputSection = section(OutputSection, "What is written.", resumed="around")
    resume: str = setting(
        "none",
        "Leave it on 'none' for a new version; 'latest' goes on with the newest checkpoint; "
        "'best' with the one whose loss on held-out images is lowest; "
        "'auto' with that of the version which the settings belong to, and starts a new one where "
        "a finished run would learn in another way; a number names the checkpoint of a step, a "
        "path a checkpoint's or a version's folder.",
        path="anchored",
        no_paths=("none", "latest", "auto", "best"),
        resumed="free",
    )
    seed: int = setting(
        0,
        "Leave it, so that the same settings train the same adapter; change it to try your luck "
        "again. Seed of all of the run's randomness.",
        ge=0,
        lt=2**63,
    )
    config_version: Literal[1] = setting(
        CONFIG_VERSION,
        "Leave it. Version of the run-file format.",
        resumed="free",
    )

    @field_validator("resume", mode="before")
    @classmethod
    def _step_as_text(cls, value: object) -> object:
        return str(value) if type(value) is int and value >= 0 else value

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields, section by section."""
        yield from self.base.problems(self.memory.base_format)
        yield from self.dataset.problems(from_cache=self.cache.manifest is not None)
        yield from self.adapter.problems()
        holds_out = self.dataset.holds_out
        yield from self.training.problems(self.output.layouts, holds_out=holds_out)
        yield from self.preview.problems(self.base.variant)
        yield from self.memory.problems()
        yield from self.output.problems()


def names_step(resume: str) -> bool:
    """Whether ``resume`` is the number of a step, and not a word or a path."""
    return _STEP.fullmatch(resume) is not None


def walk_settings(
    section: type[BaseModel] = RunConfig, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Go through every setting and section below a section, in the order of declaration.

    YAML path, with this prefix, and field; a section comes before its settings.
    """
    for name, field in section.model_fields.items():
        yield prefix + name, field
        inner = section_of(field)
        if inner is not None:
            yield from walk_settings(inner, f"{prefix}{name}.")


def when_resumed(path: str) -> Resumed:
    """What another value of a setting means for a run that is resumed, by its YAML path.

    Of what is not a setting, the nearest section's answer.
    """
    answer, kind = None, RunConfig
    for name in path.split("."):
        field = kind.model_fields.get(name)
        if field is None:
            break
        traits, kind = traits_of(field), section_of(field) or Section
        answer = (traits and traits.resumed) or answer
    return answer or "decides"


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by YAML path, nested as in a run file; no path may lead through another's value."""
    whole: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        place = whole
        for part in sections:
            place = place.setdefault(part, {})
        place[name] = value
    return whole


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, by YAML path."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        # A pattern table is one setting: its keys are regular expressions, not names.
        if isinstance(value, dict) and not path.endswith("_pattern"):
            flat |= flattened(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def find_setting(path: str) -> FieldInfo | None:
    """The setting or section at a YAML path, or None."""
    return next((field for name, field in walk_settings() if name == path), None)
