"""Run files from a goal and a quality: what an artist wants, and how much time there is for it.

Figures are data: `trainer_core/config/presets` has the general ones, a family's folder its own.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ..config.adapter import AdapterKind
from ..config.presets import FOLDER, PLAN, Figure, Layer, merged, read_layers
from ..errors import ConfigError
from ..printable import nearest
from .graph_model_denoiser import GRAPH_MODEL
from .registry import PACKAGES

GOALS = ("person", "style", "object", "edit")
"""What an adapter may be for."""

CLIP_GOALS = ("motion",)
"""What it may be for beside, where clips are trained."""

QUALITIES = ("fast", "standard", "thorough")
"""How much time a run may take."""

_RATE = "training.optimizer.learning_rate"
_SHARE = "dataset.preservation.share"
_CLIPS = "clips"
"""The trait of a run that trains clips."""
_EDIT = "edit"
_GENERATE = "generate"
_TOLD = (
    "adapter.kind",
    "training.steps",
    "dataset.resolution",
    "dataset.frames",
    "adapter.rank",
    _SHARE,
    _RATE,
    "training.sigma.density",
    "training.checkpoint_every",
)
"""What a person would ask about, in order of importance."""

_ROUNDED_TO = 10
_GIGABYTE = 10**9
"""A GPU that is sold as one of 12 GB has a little more than 12 of these."""
_STEPS = "{value} steps: each of your {images} images is learned from about {views} times."
_SMALLER = "{value} pixels: as large as {vram} GB of VRAM can learn from in reasonable time."
_SOONER = (
    "{value} pixels: about {hours:.1f} hours on this GPU; {larger} would take about {longer:.0f}."
)

_SIZES = (512, 768, 1024)
_PATCH = 16
"""Pixels along a side of an image token, of most bases."""
_TEXT = 512
_PASSES = 6
"""FLOPs of a step for each number of the base and token: forward, again, and backward."""
_REACHED = 0.4
"""Of a GPU's speed of large products. An H200 reached 0.34 (benchmarks/results/gpu_campaign.json:
FLUX.1, bf16, 1024 pixels, without the second forward pass); slower GPUs wait less for memory."""


class Chosen(NamedTuple):
    """One setting that a person would ask about.

    Attributes:
        setting: YAML path.
        value: What was chosen.
        why: One plain sentence for an artist.
    """

    setting: str
    value: Any
    why: str


class Gpu(NamedTuple):
    """What a GPU has.

    Attributes:
        vram: Bytes of its memory; None where they are not known or there is no GPU.
        flops: FLOPs a second of its products in bf16; None where they are not known.
    """

    vram: int | None = None
    flops: float | None = None


ANY_GPU = Gpu()
"""One that nothing is known of: nothing gets smaller for it."""


class Preset(NamedTuple):
    """What a preset chose.

    Attributes:
        values: YAML path to value: everything that a run file of this goal says, besides what is
            a person's own (images, name, trigger word, prompts of previews). The paths of images
            and base are places to fill in.
        chosen: What a person would ask about, in order of importance.
        preview_every: Steps between previews, for whoever has prompts; `values` says nothing of
            them, because a run file without prompts must not.
        hours: That it takes, without encoding and previews; None where the GPU is not known.
    """

    values: Mapping[str, Any]
    chosen: tuple[Chosen, ...]
    preview_every: int
    hours: float | None


def plan_preset(
    family: str,
    goal: str,
    quality: str,
    *,
    images: int,
    variant: str | None = None,
    kind: str = "auto",
    embedded: bool = False,
    gpu: Gpu = ANY_GPU,
    traits: Collection[str] = (),
    billions: float | None = None,
) -> Preset:
    """Choose every setting of a run.

    Args:
        family: As in the run file.
        goal: One of `GOALS`, or with the trait ``clips`` of `CLIP_GOALS`.
        quality: One of `QUALITIES`.
        images: Number of training images, at least 1.
        variant: The base's, such as ``generate``; None takes the family's for this goal.
        kind: Of the adapter; ``auto`` leaves it to the preset.
        embedded: Whether the base is the tiny one that ships with the trainer.
        traits: What a model of the graph tells about itself, by the layers ``trait.NAME``.
        billions: 10^9 numbers of the denoiser; None takes what the preset knows.

    Raises:
        ConfigError: When a word is unknown, the base cannot do the goal, or there is no image.
    """
    _known("goal", goal, (*GOALS, *CLIP_GOALS))
    if goal in CLIP_GOALS and _CLIPS not in traits:
        raise ConfigError(
            f"the goal {goal}, and no clip or a base of images",
            "a MODEL of videos, and a folder with clips",
            "Choose them, or one of the goals " + ", ".join(GOALS) + ".",
        )
    _known("quality", quality, QUALITIES)
    _known("adapter kind", kind, ("auto", *get_args(AdapterKind)))
    if images < 1:
        raise ConfigError(f"{images} images", "at least one", "Put images into the folder.")
    own = _own_layers(family)
    base = _variant(family, own, goal, variant, embedded=embedded)
    figures = _figures(
        own, goal, quality, variant=base, kind=kind, embedded=embedded, traits=traits
    )
    values = {key: each.value for key, each in figures.items() if key not in PLAN}
    plan = {key: figures[key].value for key in PLAN}
    plan["plan.billions"] = billions or plan["plan.billions"]
    words = {key: each.why for key, each in figures.items()} | {"training.steps": _STEPS}
    words |= {"training.optimizer.learning_rate": words["plan.pace"]} if words["plan.pace"] else {}
    steps, views = _length(values, plan, images)
    rate = values[_RATE] * plan["plan.pace"]
    size, why = _size(values, plan, gpu, steps)
    words["dataset.resolution"] = why or words["dataset.resolution"]
    warmup = min(values["training.schedule.warmup_steps"], steps // 10)
    values |= {"training.steps": steps, "training.schedule.warmup_steps": warmup}
    values = {"family": family} | values
    values[_RATE] = float(f"{rate:.6g}")
    values |= dict.fromkeys(("dataset.resolution", "preview.width", "preview.height"), size)
    values["dataset.more_resolutions"] = _smaller(values, size)
    facts = {"images": images, "views": views, "percent": format(values[_SHARE], ".0%")}
    hours = _hours(size, values, plan, steps) / gpu.flops if gpu.flops else None
    return Preset(
        values, _chosen(values, words, facts), _rounded(steps / plan["plan.previews"]), hours
    )


def _chosen(
    values: Mapping[str, Any], words: Mapping[str, str], facts: Mapping[str, Any]
) -> tuple[Chosen, ...]:
    return tuple(
        Chosen(key, values[key], words[key].format(value=values[key], **facts))
        for key in _TOLD
        if words.get(key)
    )


def variants_of(family: str) -> tuple[str, ...]:
    """The variants of a family's bases that presets know; the family itself is not imported.

    Raises:
        ConfigError: When there is no such family.
    """
    prefix = "variant."
    return tuple(n.removeprefix(prefix) for n in _own_layers(family) if n.startswith(prefix))


def _figures(
    own: Mapping[str, Layer],
    goal: str,
    quality: str,
    variant: str,
    kind: str,
    *,
    embedded: bool,
    traits: Collection[str],
) -> dict[str, Figure]:
    """Lay the figures over each other, from what every run shares to what only this one has."""
    general = _general()
    layers = [general["defaults"]["every"], general["goals"][goal], general["qualities"][quality]]
    names = [f"variant.{variant}", *(f"trait.{each}" for each in sorted(traits)), f"goal.{goal}"]
    if embedded:
        names += ["embedded", f"embedded.variant.{variant}", f"embedded.goal.{goal}"]
        names += [f"embedded.quality.{quality}"]
    special = [own.get(name, {}) for name in names]
    taken = merged([*layers, *special])["adapter.kind"].value if kind == "auto" else kind
    kinds = (f"embedded.kind.{taken}", f"embedded.goal.{goal}.kind.{taken}") if embedded else ()
    of_kind = [own.get(name, {}) for name in kinds]
    return merged([*layers, *special, general["kinds"][taken], *of_kind])


def _length(values: Mapping[str, Any], plan: Mapping[str, Any], images: int) -> tuple[int, int]:
    """Steps of a run, and how often it sees each image.

    Samples that preserve the base are not counted, as in `config.defaults.resolved_length`.
    """
    samples = min(plan["plan.samples"] * math.sqrt(images), plan["plan.most_views"] * images)
    samples = min(samples, plan["plan.most_samples"]) * plan["plan.length"]
    per_step = values["training.batch_size"] * values["training.gradient_accumulation_steps"]
    own = per_step * (1 - values[_SHARE])
    steps = _rounded(samples / own)
    return steps, int(float(f"{steps * own / images:.2g}"))


def _rounded(steps: float) -> int:
    return max(1, math.ceil(steps / _ROUNDED_TO)) * _ROUNDED_TO


def _size(
    values: Mapping[str, Any], plan: Mapping[str, Any], gpu: Gpu, steps: int
) -> tuple[int, str]:
    """The size in pixels that the quality wants, or a smaller one that the GPU is enough for.

    And why it is smaller; empty where it is not.
    """
    wanted, vram = values["dataset.resolution"], gpu.vram
    sizes = [*(each for each in _SIZES if each < wanted), wanted]
    if vram is not None:
        least = {each: plan[f"plan.gigabytes_{each}"] * _GIGABYTE for each in (1024, 768)}
        largest = next((each for each, there in least.items() if vram >= there), 512)
        sizes = [each for each in sizes if each <= largest] or [wanted]
    size, why = sizes[-1], ""
    if size < wanted:
        why = _SMALLER.format(value=size, vram=round((vram or 0) / (1 << 30)))
    if gpu.flops is None:
        return size, why
    hours = {each: _hours(each, values, plan, steps) / gpu.flops for each in sizes}
    soon = next((each for each in reversed(sizes) if hours[each] <= plan["plan.hours"]), sizes[0])
    if soon < size:
        why = _SOONER.format(value=soon, larger=size, hours=hours[soon], longer=hours[size])
    return soon, why


def _smaller(values: Mapping[str, Any], size: int) -> list[int]:
    """The other sizes of a run, each below the largest."""
    return [each for each in values["dataset.more_resolutions"] if each < size]


def _hours(side: int, values: Mapping[str, Any], plan: Mapping[str, Any], steps: int) -> float:
    """Hours of a run at a size in pixels, times the FLOPs a second of the GPU's products."""
    sizes = [side, *_smaller(values, side)]
    tokens = plan["plan.images"] * sum((each // _PATCH) ** 2 for each in sizes) / len(sizes) + _TEXT
    samples = values["training.batch_size"] * values["training.gradient_accumulation_steps"]
    work = _PASSES * plan["plan.billions"] * 1e9 * tokens * samples * steps
    return work / _REACHED / 3600


def _variant(
    family: str, own: Mapping[str, Layer], goal: str, variant: str | None, *, embedded: bool
) -> str:
    """The base's variant, which can do what the goal wants."""
    if embedded and "embedded" not in own:
        raise ConfigError(
            f"the embedded base and the family {family}",
            "a family that ships a tiny base",
            "Leave the base's family to the trainer, or choose a base of this family.",
        )
    prefix = "embedded.variant." if embedded else "variant."
    there = [name.removeprefix(prefix) for name in own if name.startswith(prefix)]
    wanted = _EDIT if goal == _EDIT else _GENERATE
    if variant is None:
        able = [name for name in there if (name == _GENERATE) == (wanted == _GENERATE)]
        variant = [*able, *there][0]
    _known("variant of a base", variant, there)
    if (variant == _GENERATE) == (wanted == _GENERATE):
        return variant
    others = ", ".join(name for name in there if (name == _GENERATE) == (wanted == _GENERATE))
    fitting = f"a base of the variant {others}" if others else "a base of another family"
    goals = _EDIT if wanted == _GENERATE else ", ".join(each for each in GOALS if each != _EDIT)
    does = "edits images" if wanted == _GENERATE else "generates from text alone"
    raise ConfigError(
        f"the goal {goal} and a base of the variant {variant}, which {does}",
        f"{fitting} for this goal",
        f"Choose such a base, or for this one the goal {goals}.",
    )


@cache
def _general() -> Mapping[str, Mapping[str, Layer]]:
    names = ("defaults", "goals", "qualities", "kinds")
    return {name: read_layers(FOLDER / f"{name}.yaml") for name in names}


@cache
def _own_layers(family: str) -> Mapping[str, Layer]:
    if family == GRAPH_MODEL:
        return read_layers(FOLDER / f"{GRAPH_MODEL}.yaml")
    _known("family", family, PACKAGES)
    found = importlib.util.find_spec(PACKAGES[family], __package__)
    assert found is not None
    assert found.origin is not None
    return read_layers(Path(found.origin).parent / "presets.yaml")


def _known(what: str, word: str, words: Collection[str]) -> None:
    """Refuse a word that is none of those there are, by `ConfigError` with the nearest one."""
    if word in words:
        return
    near = nearest(word, words, cutoff=0.4)
    remedy = f"Did you mean {near}?" if near else f"Name one of these as {what}."
    raise ConfigError(f"the {what} {word!r}", "one of " + ", ".join(words), remedy)
