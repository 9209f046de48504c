"""Run files of ai-toolkit: a job with a list of processes, as YAML or JSON.

Source: ostris/ai-toolkit at 27a03a91, ``toolkit/config_modules.py``,
``jobs/process/BaseSDTrainProcess.py``, ``toolkit/optimizer.py``, ``toolkit/scheduler.py``,
``toolkit/samplers/custom_flowmatch_sampler.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.memory import RECOVERABLE
from ..errors import ConfigError
from .ai_toolkit_datasets import dataset_folder
from .ai_toolkit_noise import set_loss, set_noise, set_preservation
from .ai_toolkit_slider import SLIDERS, set_slider
from .clips import has_clips, trains_clips
from .folders import Folder, set_folders
from .optimizers import FINDS_ITS_RATE, set_optimizer_by
from .program import Given, Program, has, set_family
from .rules import (
    EVERY,
    Conversion,
    Lacks,
    Maps,
    Read,
    Source,
    Table,
    Together,
    UnfitError,
    flag,
    leaves,
    mapping,
    mappings,
    name_of,
    number,
    text,
    texts,
    whole,
    word_of,
)
from .table_text import read_tables
from .vocabulary import set_prompts, set_schedule, set_text_encoder

_NAME = "ai-toolkit"
_BASE_FORMAT = word_of(
    {
        **dict.fromkeys(("qfloat8", "float8", "float8_e4m3fn", "fp8"), "fp8"),
        **dict.fromkeys(("qint8", "int8", "uint8", "uint7", "uint6", "convrot8"), "int8"),
        **dict.fromkeys(("uint5", "qint4", "int4", "convrot4"), "nf4"),
        "uint4": "uint4",
        "uint3": "uint3",
        "uint2": "uint3",
    }
)

_OLDER_MODELS = {
    "is_flux": "flux",
    **{f"is_{name}": name for name in ("xl", "v3", "v2", "pixart", "pixart_sigma", "auraflow")},
    "is_lumina2": "lumina2",
}
"""Keys that said the architecture before ``arch`` did, to its word."""


def _extension(value: Any) -> str:
    found = text(value).strip()
    return found if found.startswith(".") else f".{found}"


_TABLES = read_tables("ai_toolkit", extension=_extension)


def _convert(files: Given, to: Conversion) -> None:
    document = files.documents[0].values
    config = document.get("config")
    processes = config.get("process") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(processes, list) or not processes:
        raise ConfigError(
            f"{files.name}: config.process is no list of processes",
            "one process at least, which trains",
            "Give the file that starts the training.",
        )
    _outside(files, document, config, to)
    for place, other in enumerate(processes[1:], 1):
        to.lack(f"config.process[{place}]", other, "One run file is one training.")
    process = Source(files.name, _named(files, processes[0]), _TABLES["config.process[0]"])
    _require_adapter(process)
    process.apply(to)

    def part(name: str) -> Source:
        values = process.read(name, mapping, {})
        source = Source(files.name, values, _TABLES[name], f"{name}.")
        source.apply(to)
        return source

    network, train = part("network"), part("train")
    part("save")
    _network(network, to)
    _model(files, part("model"), to)
    _optimizer(train, to)
    near = "Of several text encoders CLIP-L alone is trained here."
    set_text_encoder(to, train, "train_text_encoder", "text_encoder_lr", near)
    set_noise(train, to)
    set_loss(train, _TABLES["train.ema_config"], to)
    set_preservation(train, to)
    _sample(part("sample"), train, to)
    if part("logging").read("use_wandb", flag, False):
        to.say("metrics.trackers", ["tensorboard", "wandb"], "logging.use_wandb", True)
    if set_slider(process, _TABLES["slider"], to):
        _without_images(process, train, to)
    else:
        _datasets(files, process, train, to)


def _named(files: Given, process: Any) -> Mapping[str, Any]:
    if not isinstance(process, Mapping):
        raise ConfigError(
            f"{files.name}: config.process[0] is no section",
            "names with values, such as network and train",
            "Give the file that starts the training.",
        )
    return process


_TRAINERS = {"sd_trainer", "ui_trainer", "diffusion_trainer", *SLIDERS}


def _require_adapter(process: Source) -> None:
    """Refuse jobs that make images, change files, or train something else."""
    kind = process.read("type", text, "sd_trainer")
    if kind not in _TRAINERS:
        raise ConfigError(
            f"{process.file}: type of config.process[0] is {name_of(kind)}",
            "a process that trains an adapter: " + ", ".join(sorted(_TRAINERS)),
            "Give the file of such a job; other jobs of that program are not read.",
        )
    if not process.read("network", mapping, {}):
        raise ConfigError(
            f"{process.file}: config.process[0] has no network, so that no adapter is trained",
            "a section network with type and rank",
            "Add it there; whole models and embeddings are not trained here.",
        )


def _outside(
    files: Given, document: Mapping[str, Any], config: Mapping[str, Any], to: Conversion
) -> None:
    """What stands around the process: the name, and what says nothing of training."""
    reason = Lacks("It is about what the program shows, not about training.", EVERY)
    top = {"job": reason, "config": Together("all"), "meta": Together("nothing")}
    Source(files.name, document, top).apply(to)
    for key, value in leaves("meta", document["meta"]) if document.get("meta") else ():
        to.off(key, value, "Files say what they were made with by themselves.")
    inside: Table = {"name": Maps("output.name", text), "process": Together("all")}
    Source(files.name, config, inside, "config.").apply(to)


def _network(network: Source, to: Conversion) -> None:
    """Kind, rank and alpha; the ranks of full factors there stand for none."""
    kinds = {"lora": "lora", "lokr": "lokr", "loha": "loha"}
    its_kind = network.read("type", text, "lora")
    kind = kinds.get(its_kind.lower())
    if kind is None:
        to.lack("network.type", its_kind, "There is no such kind here; lora stands in its place.")
        kind = "lora"
    network.say(to, "adapter.kind", kind, "type", its_kind)
    full = kind == "lokr" and network.read("lokr_full_rank", flag, True)
    network.when(kind == "lokr", to, _TABLES["network if lokr"])
    if full:
        ranks = ["rank", "linear", "alpha", "linear_alpha"]
        network.off(to, *ranks, why="lokr_full_rank takes no rank.")
    else:
        _rank(network, to)
    if network.read("all_layers", flag, False) or not network.read("transformer_only", flag, True):
        near = "The preset of the family with every linear layer."
        to.say("adapter.targets", "all_linear", "network.all_layers", True, near)


def _rank(network: Source, to: Conversion) -> None:
    key = "rank" if network.has("rank") else "linear"
    rank = network.read(key, whole, 4)
    network.say(to, "adapter.rank", rank, key)
    if key == "rank":
        network.off(to, "linear", why="network.rank wins over it.")
    key = "linear_alpha" if network.has("linear_alpha") else "alpha"
    alpha = network.read(key, number, 1.0) or float(rank)
    network.say(to, "adapter.alpha", alpha, key)
    if key == "linear_alpha":
        network.off(to, "alpha", why="network.linear_alpha wins over it.")


def _model(files: Given, model: Source, to: Conversion) -> None:
    arch = model.read("arch", text, "")
    older = [key for key in _OLDER_MODELS if model.read(key, flag, False)]
    if arch or not older:
        set_family(to, files, _NAME, "model.arch", arch.split(":")[0])
    else:
        key = older[0]
        set_family(to, files, _NAME, f"model.{key}", _OLDER_MODELS[key], model.values[key])
    adapters = [
        ("model." + key, model.read(key, text), when)
        for key, when in (("assistant_lora_path", "training"), ("lora_path", "always"))
        if model.has(key)
    ]
    if model.read("quantize", flag, False):
        kind, _, recovery = model.read("qtype", text, "qfloat8").partition("|")
        near = "" if kind in RECOVERABLE else "Rounded in another way, to about as many bits."
        try:
            key, value = ("qtype", kind) if model.has("qtype") else ("quantize", True)
            to.say("memory.base_format", _BASE_FORMAT(kind), f"model.{key}", value, near)
        except UnfitError:
            to.lack("model.qtype", kind, "There is no such format; memory.plan chooses.")
        recovery = recovery or model.read("accuracy_recovery_adapter", text, "")
        key = "model.accuracy_recovery_adapter"
        if recovery and kind in RECOVERABLE:
            adapters.append((key, recovery, "quantized"))
        elif recovery:
            to.lack(key, recovery, "It repairs a rounding that there is not here.")
    else:
        model.off(to, "qtype", why="model.quantize is off.")
    if adapters:
        listed = [{"path": path, "when": when} for _, path, when in adapters]
        to.say("base.adapters", listed, *adapters[0][:2])
    if model.read("compile", flag, False) or model.read("block_compile", flag, False):
        to.say("memory.compile", True, "model.compile", True)


def _optimizer(train: Source, to: Conversion) -> None:
    """Optimizer, learning rate, schedule and accumulation."""
    params = train.read("optimizer_params", mapping, {})
    name = ("optimizer", train.read("optimizer", text, "adamw"))
    ours = set_optimizer_by(train, to, name, params, "optimizer_params.{}", {"eps": 1e-6})
    key = "unet_lr" if train.has("unet_lr") else "lr"
    rate = train.read(key, number, 1e-6)
    own = "prodigy" in name[1].lower()
    raised = ours in FINDS_ITS_RATE and (rate < 0.1 or not own)
    near = "Below 0.1 that program takes 1 with this optimizer." if raised else ""
    if raised and not own:
        near = "What it begins with there; here it multiplies the rate that is found."
    learning_rate = 1.0 if raised else rate
    train.say(to, "training.optimizer.learning_rate", learning_rate, key, rate, near)
    if key == "unet_lr":
        train.off(to, "lr", why="train.unet_lr wins over it.")
    _schedule(train, rate, to)
    for key in ("gradient_accumulation", "gradient_accumulation_steps"):
        train.take(to, key, "training.gradient_accumulation_steps", whole)


def _schedule(train: Source, rate: float, to: Conversion) -> None:
    name = train.read("lr_scheduler", text, "constant")
    params = train.read("lr_scheduler_params", mapping, {})
    if name in {"step", "linear"}:
        why = "There is no such schedule here; the learning rate stays constant."
        to.lack("train.lr_scheduler", name, why)
        _unused(params, to)
        return

    def said(key: str, read: Read = number, usual: int | None = None) -> tuple[str, Any] | None:
        value, path = params.get(key, usual), f"lr_scheduler_params.{key}"
        return None if value is None else (f"train.{path}", train.check(path, value, read))

    least = said("eta_min")
    ours = set_schedule(
        to,
        ("train.lr_scheduler", name),
        # torch's cosine with restarts is given the whole run as its first round.
        cycles=said("num_cycles", usual=1),
        power=said("power"),
        min_ratio=(least[0], least[1] / rate) if least and rate else None,
        named=train.has("lr_scheduler"),
    )
    usual = 1000 if name == "constant_with_warmup" else None
    if warmup := said("num_warmup_steps", whole, usual):
        to.say("training.schedule.warmup_steps", warmup[1], *warmup)
    if least and least[1] and not rate and ours != "constant":
        to.lack(*least, "Here it is a share of the learning rate, which is 0.")
    _unused(params, to)


def _unused(params: Mapping[str, Any], to: Conversion) -> None:
    """Note the numbers of a schedule that nothing here follows from."""
    outcomes = {note.key: note.outcome for note in to.notes}
    for name, value in params.items():
        key = f"train.lr_scheduler_params.{name}"
        if name_of(key) in outcomes:
            continue
        if outcomes.get("train.lr_scheduler") == "lacking":
            to.lack(key, value, "There is no such schedule here.")
        elif name in _OF_SCHEDULES:
            to.off(key, value, "It changes nothing with this schedule.")
        else:
            to.lack(key, value, "The schedule here has no such number.")


_OF_SCHEDULES = {"eta_min", "num_cycles", "num_warmup_steps", "power"}


_CONTROLS = ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")
_ITEM = {"prompt", *_CONTROLS}
_OF_ITEM: Mapping[str, tuple[str, Read]] = {
    **dict.fromkeys(("w", "width"), ("width", whole)),
    **dict.fromkeys(("h", "height"), ("height", whole)),
    **dict.fromkeys(("d", "seed"), ("seed", whole)),
    **dict.fromkeys(("s", "steps", "sample_steps"), ("steps", whole)),
    **dict.fromkeys(("l", "cfg", "guidance_scale"), ("guidance", number)),
    **dict.fromkeys(("n", "neg"), ("negative_prompt", text)),
}


_INLINE = re.compile(r"\s--([a-z_0-9]+)\s+(\"[^\"]*\"|(?:(?!\s--).)+)")


def _inline(prompt: str) -> dict[str, Any]:
    """A prompt with flags behind it, such as ``--ctrl_img file.png``."""
    flags = {name: value.strip().strip('"') for name, value in _INLINE.findall(prompt)}
    return {"prompt": _INLINE.sub("", prompt), **flags}


def _sample(sample: Source, train: Source, to: Conversion) -> None:
    """Previews: prompts, control images, how often."""
    items: list[dict[str, Any]] = [_inline(each) for each in sample.read("prompts", texts, [])]
    items += [dict(each) for each in sample.read("samples", mappings, [])]
    if items:
        _prompts(sample, items, to)
    if (frames := sample.read("num_frames", whole, 1)) > 1:
        sample.say(to, "preview.frames", frames, "num_frames")
    neg = sample.values.get("neg")
    if isinstance(neg, str) and neg:
        to.say("preview.negative_prompt", neg, "sample.neg", neg)
    elif "neg" in sample.values:
        to.off("sample.neg", neg)
    if train.read("disable_sampling", flag, False):
        to.say("preview.every", 0, "train.disable_sampling", True)
    elif items:
        every = sample.read("sample_every", whole, 100)
        sample.say(to, "preview.every", every, "sample_every")
    else:
        sample.off(to, "sample_every", why="There are no prompts.")


def _prompts(sample: Source, items: Sequence[Mapping[str, Any]], to: Conversion) -> None:
    def options(item: Mapping[str, Any], key: str) -> str:
        return sample.check(f"samples ({key})", item.get(key) or "", text)

    word = to.values.get("dataset.trigger_word", "")
    prompts = [options(each, "prompt").replace("[trigger]", word) for each in items]
    controls = [[options(each, key) for key in _CONTROLS if each.get(key)] for each in items]
    own: list[dict[str, Any]] = [{} for _ in items]
    for place, each in enumerate(items):
        for key, value in each.items():
            setting, read = _OF_ITEM.get(key, ("", text))
            path = f"sample.samples[{place}].{key}"
            if setting and value is not None:
                own[place][setting] = sample.check(f"samples ({key})", value, read)
                to.tell("preview.prompts", path, value)
            elif key not in _ITEM:
                to.lack(path, value, "All previews share it here.")
    row = ("sample.prompts", prompts)
    set_prompts(to, prompts, own, row, controls, "sample.samples (ctrl_img)")


def _datasets(files: Given, process: Source, train: Source, to: Conversion) -> None:
    weight = train.read("reg_weight", number, 1.0)
    dropout = train.read("prompt_dropout_prob", number, 0.0)
    if dropout:
        to.say("dataset.caption_dropout", dropout, "train.prompt_dropout_prob", dropout)
    folders: list[Folder] = []
    for place, values in enumerate(process.read("datasets", mappings, [])):
        source = Source(files.name, values, _TABLES["datasets"], f"datasets[{place}].")
        clips = trains_clips(files, to) and has_clips(source)
        if clips:
            source.table = {**_TABLES["datasets"], **_TABLES["datasets of clips"]}
        word = to.values.get("dataset.trigger_word", "")
        folders.append(dataset_folder(source, weight, word, clips=clips))
    set_folders(to, folders)
    if train.has("reg_weight") and all(each.role == "train" for each in folders):
        to.off("train.reg_weight", weight, "No dataset is for regularization.")


def _without_images(process: Source, train: Source, to: Conversion) -> None:
    """A slider here has no images; the size at which that program trains them is taken over."""
    for place, values in enumerate(process.read("datasets", mappings, [])):
        source = dict(values)
        size = source.pop("resolution", None)
        if size is not None and "dataset.resolution" not in to.values:
            key, sizes = f"datasets[{place}].resolution", size if isinstance(size, list) else [size]
            largest = max((process.check(key, each, whole) for each in sizes), default=512)
            to.say("dataset.resolution", largest, f"datasets[{place}].resolution", size)
        why = "A slider is trained on images that the base makes."
        to.lack(f"datasets[{place}]", source, why)
    unused = ("prompt_dropout_prob", "reg_weight")
    train.off(to, *unused, why="A slider has no images of a folder.")


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
