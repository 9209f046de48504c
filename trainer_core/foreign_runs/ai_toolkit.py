"""Run files of ai-toolkit, YAML or JSON; what becomes of its keys: `keys/ai_toolkit.txt`.

Source: ostris/ai-toolkit at 27a03a91, ``toolkit/config_modules.py``,
``jobs/process/BaseSDTrainProcess.py``, ``jobs/process/TrainSliderProcess.py``,
``extensions_built_in/concept_slider``, ``toolkit/optimizer.py``, ``toolkit/scheduler.py``,
``toolkit/samplers/custom_flowmatch_sampler.py``, ``toolkit/dataloader_mixins.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.memory import RECOVERABLE
from ..errors import ConfigError
from .conversion import Cases, Conversion, Source, leaves, name_of
from .dataset_folders import WEIGHT, Folder, set_folders
from .key_table_parser import read_tables
from .optimizers import FINDS_ITS_RATE, set_optimizer
from .program import ConversionInput, Program, has, set_family, trains_clips
from .shared_settings import set_image_folder, set_previews, set_sizes, set_text_encoder
from .value_readers import BASE_FORMATS, UnfitError, flag, mappings, number, text, texts, whole

_NAME = "ai-toolkit"
_TABLES = read_tables("ai_toolkit")
_OLDER_MODELS = {
    "is_flux": "flux",
    "is_lumina2": "lumina2",
    **{f"is_{name}": name for name in ("xl", "v3", "v2", "pixart", "pixart_sigma", "auraflow")},
}
"""Keys that said the architecture before ``arch`` did, to its word."""
_SLIDERS = ("slider", "concept_slider")
_TRAINERS = {"sd_trainer", "ui_trainer", "diffusion_trainer", *_SLIDERS}


def _convert(files: ConversionInput, to: Conversion) -> None:
    document = files.documents[0].values
    config = document.get("config")
    processes = config.get("process") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(processes, list) or not processes:
        raise ConfigError(
            f"{files.name}: config.process is not a list of processes",
            "one process at least, which trains",
            "Give the file that starts the training.",
        )
    if not isinstance(processes[0], Mapping):
        raise ConfigError(
            f"{files.name}: config.process[0] is not a section",
            "names with values, such as network and train",
            "Give the file that starts the training.",
        )
    source = Source(files.name, processes[0], _TABLES[""])
    _require_adapter(source, processes[0])
    Source(files.name, {**document, "meta": None}, _TABLES["file"]).apply(to)
    for key, value in leaves("meta", document["meta"]) if document.get("meta") else ():
        to.unused(key, value, "Files say what they were made with by themselves.")
    Source(files.name, config, _TABLES["config"], "config.").apply(to)
    for place, other in enumerate(processes[1:], 1):
        to.missing(f"config.process[{place}]", other, "One run file is one training.")
    datasets = source.read("datasets", mappings, [])
    prompts = [_inline(each) for each in source.read("sample.prompts", texts, [])]
    prompts += [dict(each) for each in source.read("sample.samples", mappings, [])]
    source.facts = _facts(source, datasets, prompts)
    source.apply(to)
    _set_model(files, source, to)
    _set_rates(source, to)
    if prompts:
        word = to.values.get("dataset.trigger_word", "")
        for each in prompts:
            if isinstance(each.get("prompt"), str):
                each["prompt"] = each["prompt"].replace("[trigger]", word)
        set_previews(source, to, prompts, place="sample.samples", names=_OF_SAMPLES)
    if source.facts["@slider"]:
        to.applied("dataset.slider", "type", source.values["type"])
        _set_slider(source, to)
        _without_images(source, datasets, to)
    else:
        _set_datasets(files, source, datasets, to)


def _require_adapter(source: Source, process: Mapping[str, Any]) -> None:
    """Refuse jobs that make images, change files, or train something else."""
    kind = source.read("type", text, "sd_trainer")
    if kind not in _TRAINERS:
        raise ConfigError(
            f"{source.file}: type of config.process[0] is {name_of(kind)}",
            "a process that trains an adapter: " + ", ".join(sorted(_TRAINERS)),
            "Give the file of such a job; other jobs of that program are not read.",
        )
    if not process.get("network"):
        raise ConfigError(
            f"{source.file}: config.process[0] has no network, so that no adapter is trained",
            "a section network with type and rank",
            "Add it there; whole models and embeddings are not trained here.",
        )


def _facts(
    source: Source, datasets: Sequence[Mapping[str, Any]], prompts: Sequence[Any]
) -> dict[str, Any]:
    lokr = source.read("network.type", text, "lora").lower() == "lokr"
    # A null is no default there: it switches the full rank off.
    full = source.values.get("network.lokr_full_rank", True)
    return {
        "@full": lokr and full is not None and source.check("network.lokr_full_rank", full, flag),
        "@slider": source.values.get("type") in _SLIDERS,
        "@previews": bool(prompts) and not source.on("train.disable_sampling"),
        "@regularized": any(
            source.check("datasets", each.get("is_reg") or False, flag) for each in datasets
        ),
        "@schedule": _known(source),
    }


def _known(source: Source) -> str:
    """Whether a schedule of that name is here: known, unknown, or none."""
    name, row = source.word("train.lr_scheduler"), source.table.row("train.lr_scheduler")
    cases = row.cases if isinstance(row, Cases) else ()
    known = any(str(name).lower() in each.words and not each.why for each in cases)
    return "none" if name in ("linear", "step") else "known" if known else "unknown"


def _set_model(files: ConversionInput, source: Source, to: Conversion) -> None:
    """Set base, alpha, what is laid on the base, and how it is kept in memory."""
    if not source.facts["@full"]:
        rank = source.read("network.rank", whole) or source.read("network.linear", whole, 4)
        key = "linear_alpha" if source.has("network.linear_alpha") else "alpha"
        alpha = source.read(f"network.{key}", number, 1.0) or float(rank)
        source.set(to, "adapter.alpha", alpha, f"network.{key}")
        if key == "linear_alpha":
            source.unused(to, "network.alpha", why="network.linear_alpha wins over it.")
    arch = source.read("model.arch", text, "")
    older = [key for key in _OLDER_MODELS if source.on(f"model.{key}")]
    if arch or not older:
        set_family(to, files, _NAME, "model.arch", word=arch.split(":")[0])
    else:
        set_family(to, files, _NAME, f"model.{older[0]}", word=_OLDER_MODELS[older[0]], stated=True)
    keys = {"model.assistant_lora_path": "training", "model.lora_path": "always"}
    adapters = [(k, source.read(k, text), when) for k, when in keys.items() if source.has(k)]
    key = "model.qtype" if source.has("model.qtype") else "model.quantize"
    if source.on("model.quantize"):
        kind, _, recovery = source.read("model.qtype", text, "qfloat8").partition("|")
        near = "" if kind in RECOVERABLE else "Rounded in another way, to about as many bits."
        if kind.lower() in BASE_FORMATS:
            value = kind if key == "model.qtype" else True
            to.set("memory.base_format", BASE_FORMATS[kind.lower()], key, value, near)
        else:
            to.missing("model.qtype", kind, "There is no such format; memory.plan chooses.")
        key = "model.accuracy_recovery_adapter"
        recovery = recovery or source.read(key, text, "")
        if recovery and kind in RECOVERABLE:
            adapters.append((key, recovery, "quantized"))
        elif recovery:
            to.missing(key, recovery, "It repairs a rounding that there is not here.")
    if adapters:
        listed = [{"path": path, "when": when} for _, path, when in adapters]
        to.set("base.adapters", listed, *adapters[0][:2])


def _set_rates(source: Source, to: Conversion) -> None:
    """Set optimizer, learning rate and schedule."""
    name, section = source.read("train.optimizer", text, "adamw"), "train.optimizer_params"
    ours = set_optimizer(source, to, "train.optimizer", section, defaults={"eps": 1e-6})
    key = "train.unet_lr" if source.has("train.unet_lr") else "train.lr"
    rate = source.read(key, number, 1e-6)
    own = "prodigy" in name.lower()
    near = ""
    if ours in FINDS_ITS_RATE and not own:
        near = "What it begins with there; here it multiplies the rate that is found."
    elif ours in FINDS_ITS_RATE and rate < 0.1:
        near = "Below 0.1 that program takes 1 with this optimizer."
    source.set(to, "training.optimizer.learning_rate", 1.0 if near else rate, key, rate, near)
    if key == "train.unet_lr":
        source.unused(to, "train.lr", why="train.unet_lr wins over it.")
    near = "Of several text encoders CLIP-L alone is trained here."
    set_text_encoder(to, source, "train.train_text_encoder", "train.text_encoder_lr", near=near)
    key, name = "train.lr_scheduler_params.eta_min", to.values.get("training.schedule.name")
    least = source.read(key, number, 0.0)
    if least and rate and name not in (None, "constant"):
        to.set("training.schedule.min_ratio", least / rate, key, least)
    elif least and not rate and name not in (None, "constant"):
        to.missing(key, least, "Here it is a share of the learning rate, which is 0.")


_OF_SAMPLES = (
    *("w", "width", "h", "height", "d", "seed", "s", "steps", "sample_steps", "l", "cfg", "n"),
    *("guidance_scale", "neg", "ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3"),
)
_INLINE = re.compile(r"\s--([a-z_0-9]+)\s+(\"[^\"]*\"|(?:(?!\s--).)+)")


def _inline(prompt: str) -> dict[str, Any]:
    """A prompt with flags behind it, such as ``--ctrl_img file.png``."""
    flags = {name: value.strip().strip('"') for name, value in _INLINE.findall(prompt)}
    return {"prompt": _INLINE.sub("", prompt), **flags}


def _set_slider(source: Source, to: Conversion) -> None:
    """Set the prompts between which a slider moves, and those that it is to leave alone."""
    key = "slider.target_class"
    if source.values["type"] == "slider":
        _set_targets(source, source.read("slider.targets", mappings, []), to)
    elif neutral := source.read(key, text, ""):
        source.set(to, "dataset.slider.neutral", [neutral], key, neutral)
    older = source.values["type"] == "slider"
    anchors = source.read("slider.anchors", mappings, []) if older else []
    if anchors:
        prompts = [source.check("anchors", each.get("prompt") or "", text) for each in anchors]
        weight = source.check("anchors", anchors[0].get("multiplier", 1.0), number)
        _set_held(to, "slider.anchors", prompts, weight)
    elif not older and source.values.get("slider.anchor_class"):
        word = source.read("slider.anchor_class", text)
        weight = source.read("slider.anchor_strength", number, 1.0)
        _set_held(to, "slider.anchor_class", [word], weight)
    sizes = source.read("slider.resolutions", _sizes, []) if older else []
    for place, (width, height) in enumerate(sizes):
        if place:
            to.missing("slider.resolutions", [width, height], "A slider is trained at one size.")
            continue
        near = "" if width == height else "A slider is trained on squares."
        size = min(width, height)
        to.set("dataset.resolution", size, "slider.resolutions", [width, height], near)


def _set_targets(source: Source, targets: Sequence[Mapping[str, Any]], to: Conversion) -> None:
    """The first target; others with its two prompts add what the slider is used on."""

    def prompts(target: Mapping[str, Any], *names: str) -> list[str]:
        return [source.check("slider.targets", target.get(name) or "", text) for name in names]

    directions = ("positive", "negative")
    first = prompts(targets[0], *directions) if targets else []
    for setting, value in zip(directions, first, strict=False):
        to.set(f"dataset.slider.{setting}", value, f"slider.targets[0].{setting}", value)
    neutral: list[str] = []
    for place, each in enumerate(targets):
        key, value = f"slider.targets[{place}]", prompts(each, "target_class")[0]
        if prompts(each, *directions) != first:
            to.missing(key, dict(each), "One run is one slider, between two prompts.")
            continue
        neutral += [value] if value not in neutral else []
        for name, usual in (("weight", 1.0), ("multiplier", 1.0), ("shuffle", False)):
            if each.get(name, usual) != usual:
                to.missing(f"{key}.{name}", each[name], "All prompts count alike, as they stand.")
    if targets and neutral != [""]:
        to.set("dataset.slider.neutral", neutral, "slider.targets (target_class)", neutral)


def _set_held(to: Conversion, key: str, prompts: list[str], weight: float) -> None:
    """Prompts that stay as they are: a third loss there, a share of the batch here."""
    near = "There each sample has a further loss; here a share of each batch has it."
    to.set("dataset.preservation.prompts", prompts, key, prompts, near)
    share = round(weight / (2 + weight), 3) if weight > 0 else 0.0
    to.set("dataset.preservation.share", share, key, weight, "The share that weighs as much.")


def _sizes(value: Any) -> list[tuple[int, int]]:
    if not isinstance(value, list) or not all(
        isinstance(each, list) and len(each) == 2 for each in value
    ):
        raise UnfitError("a list of sizes, such as [[512, 512]]")
    return [(whole(width), whole(height)) for width, height in value]


def _without_images(source: Source, datasets: Sequence[Mapping[str, Any]], to: Conversion) -> None:
    """A slider here has no images; the size at which that program trains them is taken over."""
    for place, values in enumerate(datasets):
        rest = dict(values)
        key, size = f"datasets[{place}].resolution", rest.pop("resolution", None)
        if size is not None and "dataset.resolution" not in to.values:
            sizes = [
                source.check(key, e, whole) for e in (size if isinstance(size, list) else [size])
            ]
            to.set("dataset.resolution", max(sizes, default=512), key, size)
        why = "A slider is trained on images that the base makes."
        to.missing(f"datasets[{place}]", rest, why)


def _set_datasets(
    files: ConversionInput, source: Source, datasets: Sequence[Mapping[str, Any]], to: Conversion
) -> None:
    weight, word = (
        source.read("train.reg_weight", number, 1.0),
        to.values.get("dataset.trigger_word", ""),
    )
    folders: list[Folder] = []
    if not datasets:
        source.missing(to, "datasets", "It names no folder.")
    for place, values in enumerate(datasets):
        each = Source(files.name, values, _TABLES["datasets"], f"datasets[{place}].")
        clips = trains_clips(files, to) and (
            each.on("auto_frame_count") or each.read("num_frames", whole, 1) > 1
        )
        masks = each.on("alpha_mask") or each.has("mask_path")
        each.facts = {"@clips": clips, "@masks": masks}
        folders.append(_folder(each, weight, word))
    set_folders(to, folders)


def _folder(source: Source, regularization_weight: float, trigger_word: str) -> Folder:
    """One dataset as a folder."""
    to = Conversion()
    source.apply(to)
    # What stands first wins there.
    key = "dataset_path" if source.has("dataset_path") else "folder_path"
    controls = [f"control_path_{at}" for at in (1, 2, 3) if source.values.get(f"control_path_{at}")]
    set_image_folder(source, to, key, *(controls or ["control_path"]))
    sizes = source.values.get("resolution", 512)
    sizes = sizes if isinstance(sizes, list) else [512 if sizes is None else sizes]
    found = [source.check("resolution", each, whole) for each in sizes]
    set_sizes(source, to, "resolution", found)
    weight = source.read("loss_multiplier", number, 1.0)
    if weight != 1:
        to.applied(WEIGHT, source.name("loss_multiplier"), weight)
    if not source.on("is_reg"):
        return Folder(to, "train", weight, source.prefix.rstrip("."))
    to.applied("dataset.folders", source.name("is_reg"), True)
    if to.values.setdefault("dataset.trigger_word", trigger_word):
        to.values["dataset.captions.add_trigger"] = False
    weight *= regularization_weight
    return Folder(to, "regularization", weight, source.prefix.rstrip("."))


def _is_job(values: Mapping[str, Any]) -> bool:
    config = values.get("config")
    return isinstance(config, Mapping) and isinstance(config.get("process"), list)


PROGRAM = Program(
    name=_NAME,
    version="27a03a91",
    tables=_TABLES,
    marks={"a job": has("job"), "config.process": _is_job},
    convert=_convert,
)
