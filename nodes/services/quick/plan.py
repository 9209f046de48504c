"""Turns the answers of Train LoRA (Quick) into a run file: dataset, base, `families.presets`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ....trainer_core.errors import DatasetError, InputError
from ....trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from ....trainer_core.printable import listed
from ....trainer_core.types import ANY_CLIPS, FrameGrid
from ...host import comfy_host
from ...host.clip_and_vae_inputs import MUTED
from ...host.folders import headers
from ..expert_models import AUTO, HIGH, LOW, SWITCH_AT, ExpertInputs
from ..graph_base import base_of_model
from ..merged_run_config import check_run_name, run_config
from ..socket_values import AdapterChoice, BaseChoice, DatasetChoice, PreviewChoice, SettingsChoice
from .base import NO_ADAPTER, QuickBase, quick_base

if TYPE_CHECKING:
    from ....trainer_core.types import Sample

_MOST_CONTROLS = 16
_NAMED = 5  # files that a message gives as examples
_KINDS = {"resume": bool, "steps": int, "seed": int, "switch_at": float | int}
_WORD_IS_ENOUGH = ("person", "object")
# What a setting is called where its own name says too little.
_LABELS = {
    "dataset.preservation.share": "preservation",
    "training.sigma.density": "noise",
}


@dataclass(frozen=True, slots=True)
class Answers:
    """What the node is told, by the ids of its inputs.

    Attributes:
        training_adapter: File of the loras folder that a distilled base is trained with.
        loader: Of the MODEL that is connected: its class, a slash, and the file that it loads.
        expert: Which levels of noise the MODEL is for, of `ROLES`.
        switch_at: As of `Expert`.
    """

    folder: str
    base: str
    goal: str
    quality: str
    name: str = ""
    trigger_word: str = ""
    kind: str = "auto"
    prompts: str = ""
    steps: int = 0
    seed: int = 0
    resume: bool = True
    training_adapter: str = NO_ADAPTER
    loader: str = ""
    expert: str = AUTO
    switch_at: float = SWITCH_AT

    @property
    def run_name(self) -> str:
        """The name of the run: as given, or that of the folder."""
        return self.name.strip() or _name_of(self.folder)

    @property
    def word_is_enough(self) -> bool:
        """Whether the trigger word is enough where no image has a caption."""
        return self.goal in _WORD_IS_ENOUGH and bool(self.trigger_word.strip())


@dataclass(frozen=True, slots=True)
class QuickPlan:
    """What is trained.

    Attributes:
        answers: What was asked for.
        family: Of the base.
        values: All that the run file says beyond its defaults, by YAML path.
        choices: What a person would ask about: ``setting``, ``value`` and ``why``.
    """

    answers: Answers
    family: str
    values: Mapping[str, Any]
    choices: Sequence[Mapping[str, str]]

    @property
    def borrows(self) -> bool:
        """Whether the MODEL of the graph itself is trained."""
        return self.family == GRAPH_MODEL


class Connected(NamedTuple):
    """Values of the node's sockets; None where nothing is connected.

    Attributes:
        model: The graph's MODEL; without one the answers name the base.
        clip: Its text encoder, and `vae` its image encoder; some bases have their own.
        other_expert: The MODEL of the other expert, for previews.
        vision: The CLIP_VISION by which the MODEL sees the first frame of a clip.
        audio: The VAE of the MODEL's sound.
    """

    model: Any = None
    clip: Any = None
    vae: Any = None
    other_expert: Any = None
    vision: Any = None
    audio: Any = None


class NodeValues(NamedTuple):
    """A plan as the other nodes would hand it on."""

    dataset: DatasetChoice
    base: BaseChoice
    previews: PreviewChoice
    adapter: AdapterChoice
    settings: SettingsChoice
    own: Mapping[str, Any]


def answers_of(values: object) -> Answers:
    """What a browser says of inputs that are not linked; `InputError` for no mapping."""
    if isinstance(values, Mapping):
        known = {each.name: values[each.name] for each in fields(Answers) if each.name in values}
        fits = all(isinstance(v, _KINDS.get(k, str)) for k, v in known.items())
        if fits and all(name in known for name in ("folder", "base", "goal", "quality")):
            return Answers(**known)
    raise InputError(
        "no values of the inputs of Train LoRA (Quick)",
        "folder, base, goal and quality, each chosen on the node itself",
        "Choose them on the node; an input that is linked has no value before it runs.",
    )


def check_answers(answers: Answers, unlinked: Sequence[str]) -> None:
    """Check what names and captions say, before anything is loaded; the quality does not matter.

    `unlinked` are those of the sockets for MODEL, CLIP and VAE that have no link.

    Raises:
        InputError: When folder and goal or the name do not fit, or a base from a file is without
            CLIP or VAE.
    """
    check_run_name({"name": answers.run_name})
    needed = [socket for socket in unlinked if socket != "model"]
    if needed and ("model" not in unlinked or answers.base != comfy_host.EMBEDDED):
        raise _unconnected(needed, "Add their loaders, Load CLIP and Load VAE, and connect them.")
    _captions(answers, _scan(answers.folder, None if "model" in unlinked else ANY_CLIPS))


def plan_run(answers: Answers, model: Any = None, *, complete: bool = True) -> QuickPlan:
    """Choose everything that was not asked.

    The MODEL is None where it is not loaded yet, or there is none. `complete` says whether captions
    and pairs have to be there already, and every file has to be readable.

    Raises:
        InputError: When folder and goal, base and goal, or the name do not fit, or the base cannot
            be trained on.
    """
    from ....trainer_core.config.presets.prompts import preview_prompts
    from ....trainer_core.families.presets import Gpu, plan_preset

    base = quick_base(answers, model)
    embedded = base.values.get("base.path") == comfy_host.EMBEDDED
    samples = _scan(answers.folder, base.clips, stop=complete)
    captions = _captions(answers, samples) if complete else "error"
    vram = comfy_host.total_vram()
    choose = partial(
        plan_preset,
        base.family,
        answers.goal,
        answers.quality,
        variant=base.variant,
        kind=answers.kind,
        embedded=embedded,
        gpu=Gpu(vram, comfy_host.rated_speed()),
        traits=base.traits | ({"clips"} if any(each.clip for each in samples) else set()),
        billions=base.billions,
    )
    preset = choose(images=len(samples))
    if frames := preset.values.get("dataset.frames"):
        # Longer parts of the clips are fewer.
        samples = _scan(answers.folder, base.clips, {"frames": frames}, stop=complete)
        preset = choose(images=len(samples))
    texts = _texts(answers.trigger_word, samples, embedded=embedded)
    prompts = [line.strip() for line in answers.prompts.splitlines() if line.strip()]
    word = answers.trigger_word
    prompts = prompts or preview_prompts(answers.goal, word, texts, embedded=embedded)
    values = {
        **preset.values,
        **base.values,
        "dataset.path": str(comfy_host.dataset_path(answers.folder)),
        "dataset.trigger_word": answers.trigger_word.strip(),
        "dataset.missing_caption": captions,
        "preview.prompts": prompts,
        "preview.controls": first_controls(samples, len(prompts)),
        "preview.every": preset.preview_every,
        "output.name": answers.run_name,
        "seed": answers.seed,
        "resume": "auto" if answers.resume else "none",
    }
    values.pop("family", None)
    if answers.steps:
        _shorten(values, answers.steps)
    rows = [*_facts(answers, samples, captions, base=base, vram=vram, values=values)]
    if preset.hours is not None and not answers.steps:
        rows.append(_time(preset.hours, values["dataset.preservation.share"]))
    for setting, value, why in preset.chosen:
        if setting == "training.steps" and answers.steps:
            value, why = answers.steps, "Your own number."
        rows.append(_row(_LABELS.get(setting) or setting.rpartition(".")[2], value, why))
    return QuickPlan(replace(answers, base=base.name), base.family, values, rows)


def _texts(word: str, samples: Sequence[Sample], *, embedded: bool) -> list[str]:
    """Captions as prompts: a CLIP of the graph reads brackets of a prompt as weights."""
    from ....trainer_core.data.captions.bracket_weights import escaped_brackets
    from ....trainer_core.data.captions.rules import with_trigger

    texts = [with_trigger(word, each.caption) for each in samples if each.caption]
    return texts if embedded else list(map(escaped_brackets, texts))


def as_node_values(plan: QuickPlan, connected: Connected) -> NodeValues:
    """A plan in the parts that graph_run takes, with the MODEL that it borrows.

    Raises:
        InputError: When something belongs to a MODEL, and the base is read from its file.
    """
    from ....trainer_core.config.run import nested

    if not plan.borrows:
        _refuse_beside_file(plan, connected)

    sections = nested(plan.values)
    training, preview = sections.get("training", {}), sections.get("preview", {})
    precision = training.pop("precision", "auto")
    own = {name: sections.pop(name) for name in ("output", "seed", "resume") if name in sections}
    every = {"every": preview.pop("every")} if "every" in preview else {}
    answers = plan.answers
    expert = ExpertInputs(answers.expert, answers.switch_at, connected.other_expert)
    return NodeValues(
        DatasetChoice(sections.pop("dataset")),
        base_of_model(
            connected.model,
            precision,
            expert=expert,
            vision=connected.vision,
            audio=connected.audio,
        )
        if plan.borrows
        else BaseChoice(plan.family, sections.pop("base"), precision),
        PreviewChoice(sections.pop("preview")),
        adapter=AdapterChoice(sections.pop("adapter", {})),
        settings=SettingsChoice({**sections, "preview": every}),
        own=own,
    )


def _refuse_beside_file(plan: QuickPlan, connected: Connected) -> None:
    sockets = {
        "other_expert": connected.other_expert,
        "clip_vision": connected.vision,
        "audio_vae": connected.audio,
    }
    found = [f"{name} is connected" for name, value in sockets.items() if value is not None]
    expert = plan.answers.expert
    found += [f"expert is {expert}"] if expert in {HIGH, LOW} else []
    if found:
        remedy = "Disconnect what is connected there, and set expert to auto."
        if connected.model is None:
            remedy += " Or connect the MODEL that it belongs to."
        raise InputError(
            f"{' and '.join(found)}, and the base is read from its file ({plan.answers.base})",
            "these beside a MODEL that is trained as the graph has it",
            remedy,
        )


def require_encoders(base: BaseChoice, clip: Any, vae: Any) -> None:
    """Refuse a base from a file without the graph's CLIP and VAE.

    Raises:
        InputError: It says which loaders to add, for this very base.
    """
    from ....trainer_core.bases.locate import locate_base
    from ....trainer_core.families.registry import get_family

    connected = {"clip": clip, "vae": vae}
    missing = [name for name, value in connected.items() if value is None]
    if base.embedded or not missing:
        return
    if base.model is not None:
        raise _unconnected(missing, "Connect those that you generate with.")
    family, settings = get_family(base.family), run_config(base).base
    remedies: dict[str, str] = {}
    if family.graph is not None:
        edits = settings.variant not in ("auto", "generate")
        spec = family.graph.of(locate_base(settings, family, edits, needs_encoders=False))
        remedies = {"clip": spec.clip.remedy, "vae": spec.vae.remedy}
    raise _unconnected(missing, " ".join(remedies[name] for name in missing if name in remedies))


def control_files(folder: str, count: int) -> list[list[str]]:
    """The first control images of a folder that a graph names, a list for each of so many prompts.

    Raises:
        DatasetError: When the folder cannot be read, or has no control images.
    """
    found = first_controls(_scan(folder, ANY_CLIPS), count)
    if found:
        return found
    raise DatasetError(
        f"{folder} has no control images",
        "a folder with training_images and control_images",
        "Choose such a folder as controls_from, or connect an image to controls.",
    )


def first_controls(samples: Sequence[Sample], count: int) -> list[list[str]]:
    """Control images for so many prompts, those of the first samples in turn; none without any."""
    found = [[str(path) for path in each.controls] for each in samples if each.controls]
    found = found[:_MOST_CONTROLS]
    return [found[index % len(found)] for index in range(count)] if found else []


def _captions(answers: Answers, samples: Sequence[Sample]) -> str:
    """What to do about missing captions."""
    edit, paired = answers.goal == "edit", any(sample.controls for sample in samples)
    if edit != paired:
        has = "has control images" if paired else "has no control images"
        raise DatasetError(
            f"{answers.folder} {has}, and goal is {answers.goal}",
            "for the goal edit a folder with training_images (after) and control_images (before); "
            "for the others images alone",
            "Set goal to edit."
            if paired
            else "Choose another goal, or put the images from before the edit into control_images.",
        )
    silent = [sample.name for sample in samples if not sample.caption]
    if not silent:
        return "error"
    if answers.word_is_enough and len(silent) == len(samples):
        return "empty"
    raise _silent(answers, silent, len(samples), words=answers.goal in _WORD_IS_ENOUGH)


def _silent(answers: Answers, silent: Sequence[str], images: int, *, words: bool) -> DatasetError:
    if len(silent) == images:
        found = f"no image of {answers.folder} has a caption"
        remedy = "Type a trigger word, such as ohwx." if words else "Write the captions."
    else:
        named = listed(silent, _NAMED)
        found = f"{len(silent)} of {images} images in {answers.folder} have no caption: {named}"
        word = answers.trigger_word.strip()
        how = f"press Use “{word}” there" if word else "type a trigger word, and press Use it there"
        remedy = "Write the missing captions."
        remedy += f" Or {how}, below the images." if words else ""
    also = ", or a trigger word and no caption at all" if words else ""
    return DatasetError(
        found, f"a text file beside each image that says what it shows{also}", remedy
    )


def _scan(
    folder: str,
    clips: FrameGrid | None = None,
    more: Mapping[str, Any] | None = None,
    *,
    stop: bool = True,
) -> Sequence[Sample]:
    """The samples without the trigger word; `more` are settings of the dataset.

    `stop` says whether a file that cannot be used is refused; else it is left out.
    """
    from ....trainer_core.data.sources.scan_folder import scan
    from ....trainer_core.families.run_files import load_config

    path = str(comfy_host.dataset_path(folder))
    values = {"path": path, "missing_caption": "empty", **(more or {})}
    settings = load_config({"dataset": values}).dataset
    within = comfy_host.allowed_folders()
    samples = scan(settings, within, stop=stop, remembered=headers(), grid=clips).samples
    # A held-out image is never trained on, and no length follows from it.
    return [each for each in samples if not each.validation]


def _shorten(values: dict[str, Any], steps: int) -> None:
    values["training.steps"] = steps
    values["preview.every"] = min(values["preview.every"], steps)
    if values.get("training.schedule.warmup_steps", 0) >= steps:
        values["training.schedule.warmup_steps"] = steps // 10


def _facts(
    answers: Answers,
    samples: Sequence[Sample],
    captions: str,
    base: QuickBase,
    vram: int | None,
    values: Mapping[str, Any],
) -> Sequence[dict[str, str]]:
    rows = [
        _row("name", answers.run_name, "You gave it." if answers.name.strip() else "The folder's."),
        *_counts(answers.folder, samples),
        *_found(samples),
        _row("base", base.title, base.source),
    ]
    if answers.training_adapter != NO_ADAPTER:
        why = "Part of the base while it trains; samples and the saved file are without it."
        rows.append(_row("training adapter", answers.training_adapter, why))
    if vram is not None:
        rows.append(_row("VRAM", f"{vram / 2**30:.1f} GiB", "Of the GPU that ComfyUI uses."))
    if captions == "empty":
        why = f"No image has a caption. For this goal ({answers.goal}) the trigger word is enough."
        rows.append(_row("captions", values["dataset.trigger_word"], why))
    return rows


def _counts(folder: str, samples: Sequence[Sample]) -> Iterator[dict[str, str]]:
    """How many images there are, and how clips are cut."""
    parts = [(each.image, each.clip) for each in samples if each.clip is not None]
    if len(parts) < len(samples):
        yield _row("images", len(samples) - len(parts), f"In {folder}.")
    if parts:
        files, rates = len({path for path, _ in parts}), {part.rate for _, part in parts}
        frames = sorted({part.frames for _, part in parts})
        lengths = f"{frames[0]} to {frames[-1]}" if len(frames) > 1 else f"{frames[0]}"
        why = f"Of {files} clip(s) in {folder}, at {min(rates):g} frames a second."
        yield _row("parts of clips", f"{len(parts)}, of {lengths} frames", why)


def _time(hours: float, share: float) -> dict[str, str]:
    """How long a run takes, by what its GPU is sold for."""
    why = "On your GPU, without encoding and samples; other work on it comes on top."
    if share:
        why += f" {60 * hours * share:.0f} minutes of it hold the model to how it was."
    shown = f"about {hours:.1f} hours" if hours >= 1 else f"about {60 * hours:.0f} minutes"
    return _row("time", shown, why)


def _found(samples: Sequence[Sample]) -> Iterator[dict[str, str]]:
    """What a folder says of its images beyond captions and control images."""
    from ....trainer_core.config.folders import MaskSection

    masked = sum(sample.mask is not None for sample in samples)
    if masked:
        rest = MaskSection.model_fields["background"].default
        why = f"White of a mask is trained; what is black counts {rest:g} of it."
        yield _row("masks", f"{masked} of {len(samples)}", why)
    several = sum(bool(sample.more_captions) for sample in samples)
    if several:
        why = "So many images have more than one; each epoch takes another."
        yield _row("several captions", several, why)
    epoch = sum(sample.repeats for sample in samples)
    if epoch != len(samples):
        why = "As its folders' names (10_name) or its metadata file say."
        yield _row("images of an epoch", epoch, why)


def _row(setting: str, value: Any, why: str) -> dict[str, str]:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return {"setting": setting.replace("_", " "), "value": shown, "why": why}


def _unconnected(missing: Sequence[str], remedy: str) -> InputError:
    names = " and ".join(name.upper() for name in missing)
    return InputError(
        f"nothing is connected to {names}",
        "the text encoder (CLIP) and the VAE that the base generates with; only the embedded base "
        "has its own",
        f"{remedy} {MUTED}",
    )


def _name_of(folder: str) -> str:
    """A run's name from that of a folder: what a name cannot have becomes an underscore."""
    last = unicodedata.normalize("NFC", folder.rpartition("/")[2])
    plain = "".join(c if c.isalnum() or c in " ._-" else "_" for c in last).strip(" ._-")
    for name in (last, plain):
        try:
            check_run_name({"name": name})
        except InputError:
            continue
        return name
    return "adapter"
