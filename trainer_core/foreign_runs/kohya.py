"""What the two programs of kohya share: command lines, TOML files, and most arguments.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``,
``training/trainer_base.py``, ``networks/``, and kohya-ss/sd-scripts at 48d368fa,
``library/train_util.py``, ``library/flux_train_utils.py``, ``train_network.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .kohya_keys import OPTIONS, SCRIPT, TRAIN, Values, without_sections
from .optimizers import set_optimizer_by
from .program import Given, other_script, script_of
from .rules import EVERY, Conversion, Lacks, Maps, Source, Table, flag, number, text, texts, whole
from .vocabulary import set_schedule, set_trackers

_LAUNCH = (
    "num_cpu_threads_per_process",
    "num_processes",
    "num_machines",
    "gpu_ids",
    "main_process_port",
    "config_file",
    "multi_gpu",
    "machine_rank",
)

Datasets = tuple[str, Values] | None
"""The name of a file of datasets, and what it holds."""


def read_parts(
    files: Given, to: Conversion, scripts: Sequence[str], is_dataset: Callable[[Values], bool]
) -> tuple[dict[str, Any], Datasets]:
    """Collect the arguments of a training, from a command and the file it names, and its datasets.

    Args:
        to: Gets notes on what is not here.
        scripts: Of the program; a command that starts another one is refused.
        is_dataset: Test of a file for datasets.
    """
    arguments: dict[str, Any] = {}
    datasets: Datasets = None
    for document in files.documents:
        if document.format == "command":
            words = document.values["command"]
            if script_of(words).lower() not in scripts:
                raise other_script(document.name, words, scripts)
            own = _read_command(words, to)
            named = own.get("config_file")
            found = files.find(_toml(named)) if isinstance(named, str) else None
            if isinstance(named, str) and found is None and len(files.documents) == 1:
                to.lack("config_file", named, "It is not here: give it with a second --from.")
            arguments |= {**(without_sections(found.values) if found else {}), **own}
        elif is_dataset(document.values):
            datasets = document.name, document.values
        else:
            arguments = {**without_sections(document.values), **arguments}
    named = arguments.get("dataset_config")
    if datasets is None and isinstance(named, str):
        found = files.find(named)
        datasets = (found.name, found.values) if found and is_dataset(found.values) else None
    return arguments, datasets


def say_family_of_datasets(files: Given, to: Conversion, key: str) -> None:
    """Say the family where only datasets were given.

    Args:
        key: The program's for the model.
    """
    if files.family:
        to.say("family", files.family, "family", files.family)
    else:
        to.lack(key, "", "A file of datasets alone names no model: set family and base.path.")


def note_missing_datasets(source: Source, to: Conversion) -> None:
    """Note a file of datasets that is named and not here."""
    if source.has("dataset_config"):
        named = source.values["dataset_config"]
        why = "It is not here: give it behind the other file, with a second --from."
        to.lack("dataset_config", named, why)


def _toml(name: str) -> str:
    return name if name.endswith(".toml") else f"{name}.toml"


def _read_command(words: Sequence[str], to: Conversion) -> dict[str, Any]:
    """The arguments behind the script; those of accelerate in front of it are noted."""
    place = next(at for at, word in enumerate(words) if script_of([word]))
    script = script_of(words).lower().removesuffix(TRAIN).rstrip("_")
    arguments: dict[str, Any] = {SCRIPT: script or "sd"}
    for name, value in _flags(words[:place], to):
        if name == "mixed_precision":
            arguments[name] = value
        elif name in _LAUNCH:
            to.off(f"accelerate --{name}", value, "accelerate launch sets it here, too.")
        else:
            to.unknown(f"accelerate --{name}", value)
    return {**arguments, **dict(_flags(words[place + 1 :], to))}


def _flags(words: Sequence[str], to: Conversion) -> Iterator[tuple[str, Any]]:
    """``--name``, ``--name value``, ``--name=value`` or ``--name value value ...``."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            if not word.startswith("-") and place > 2:
                to.unknown(word, "")
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        values = [value] if equals else []
        while place < len(words) and not words[place].startswith("--") and not equals:
            values.append(words[place])
            place += 1
            if name not in OPTIONS:
                break
        yield name, values if name in OPTIONS else values[0] if values else True


def set_kind(
    source: Source, to: Conversion, word: str, kind: str | None, key: str = "network_module"
) -> None:
    """Set the kind of adapter, what the program starts it with, and adapters in the base.

    Args:
        word: The module of the network, or its algorithm.
        kind: Ours; None where there is none.
    """
    if kind is None:
        to.lack(key, word, "There is no such kind here; lora stands in its place.")
    named = source.has("network_module") and kind is not None
    to.say("adapter.kind", kind or "lora", key, word, stated=named)
    to.say("adapter.init", "lycoris", key, "kaiming", stated=False)
    if kind == "lokr" and "adapter.factor" not in to.values:
        to.say("adapter.factor", -1, "network_args (factor)", -1, stated=False)
    weights = source.read("base_weights", texts, [])
    if weights:
        strengths = source.read("base_weights_multiplier", lambda v: [number(x) for x in v], [])
        strengths += [1.0] * (len(weights) - len(strengths))
        pairs = zip(weights, strengths, strict=False)
        listed = [{"path": path, "strength": strength} for path, strength in pairs]
        to.say("base.adapters", listed, "base_weights", weights)
        if source.has("base_weights_multiplier"):
            to.tell("base.adapters", "base_weights_multiplier", strengths)


def apply_pairs(
    source: Source, key: str, table: Table, to: Conversion
) -> Iterator[tuple[str, str, str]]:
    """Apply a table to items ``name=value`` of an argument.

    Returns:
        Name, key for notes, and value of those that say something together with others.
    """
    for name, value in read_pairs(source, key, to):
        path, rule = f"{key} ({name})", table.get(name)
        if isinstance(rule, Maps):
            to.say(rule.setting, source.check(path, value, rule.read), path, value, rule.near)
        elif isinstance(rule, Lacks):
            off = rule.off is EVERY or rule.is_off(value)
            (to.off if off else to.lack)(path, value, rule.why)
        elif rule is None:
            to.unknown(path, value)
        else:
            yield name, path, value


def read_pairs(source: Source, key: str, to: Conversion) -> Iterator[tuple[str, str]]:
    """Items of the form ``name=value``."""
    for each in source.read(key, texts, []):
        name, equals, value = each.partition("=")
        if equals:
            yield name.strip(), value.strip()
        else:
            to.unknown(f"{key} {each}", "")


def set_optimizer_of(source: Source, to: Conversion) -> None:
    """Set the optimizer with its numbers, and the schedule."""
    name = source.read("optimizer_type", text, "AdamW") or "AdamW"
    args: dict[str, Any] = dict(read_pairs(source, "optimizer_args", to))
    if "betas" in args:
        args["betas"] = [each.strip() for each in args["betas"].strip("()[] ").split(",")][:2]
    set_optimizer_by(source, to, ("optimizer_type", name), args, "optimizer_args ({})")
    _schedule(source, to)


def _schedule(source: Source, to: Conversion) -> None:
    name = source.read("lr_scheduler", text, "constant")
    cycles = source.read("lr_scheduler_num_cycles", whole, 1)
    power = source.read("lr_scheduler_power", number, 1.0)
    rex = name.lower() == "rex"
    ratio = source.read("lr_scheduler_min_lr_ratio", number, 0.01 if rex else 0.0)
    decay = source.read("lr_decay_steps", number, 0.0)
    share = ("lr_decay_steps", decay) if 0 < decay <= 1 else None
    set_schedule(
        to,
        ("lr_scheduler", name),
        cycles=("lr_scheduler_num_cycles", cycles),
        power=("lr_scheduler_power", power),
        min_ratio=("lr_scheduler_min_lr_ratio", ratio),
        decay_share=share,
        named=source.has("lr_scheduler"),
    )
    numbers = ("lr_scheduler_num_cycles", "lr_scheduler_power", "lr_scheduler_min_lr_ratio")
    source.unused(to, *numbers, why="It means nothing with this schedule.")
    if source.has("lr_decay_steps") and share is None:
        to.lack("lr_decay_steps", decay, "Set training.schedule.decay_share to a share.")
    warmup = source.read("lr_warmup_steps", number, 0.0)
    if 0 < warmup < 1:
        to.say("training.schedule.warmup_share", warmup, "lr_warmup_steps", warmup)
    elif warmup:
        to.say("training.schedule.warmup_steps", int(warmup), "lr_warmup_steps", warmup)
    elif source.has("lr_warmup_steps"):
        to.off("lr_warmup_steps", warmup)


def set_memory(source: Source, to: Conversion) -> None:
    """Set block swap, checkpointing and the base's format."""
    swapped = source.read("blocks_to_swap", whole, 0)
    checkpoint = source.read("gradient_checkpointing", flag, False)
    if swapped and not checkpoint:
        to.lack("gradient_checkpointing", checkpoint, "Swapped blocks need it here; it stays on.")
    else:
        source.say(to, "memory.gradient_checkpointing", checkpoint, "gradient_checkpointing")
    source.take(to, "blocks_to_swap", "memory.blocks_to_swap", whole)


def set_run(source: Source, to: Conversion) -> None:
    """Set length, checkpoints and logs."""
    if source.has("max_train_epochs"):
        to.epochs["training.steps"] = "max_train_epochs", source.read("max_train_epochs", whole)
        source.off(to, "max_train_steps", why="Epochs win over it.")
    else:
        steps = source.read("max_train_steps", whole, 1600)
        source.say(to, "training.steps", steps, "max_train_steps")
    for key, setting in (
        ("save_every_n_epochs", "training.checkpoint_every"),
        ("sample_every_n_epochs", "preview.every"),
        ("validate_every_n_epochs", "dataset.validation.every"),
    ):
        if epochs := source.read(key, whole, 0):
            to.epochs[setting] = key, epochs
        else:
            source.off(to, key)
    every, last = (source.read(f"save_{name}_n_steps", whole, 0) for name in ("every", "last"))
    if source.has("save_last_n_steps") and every > 0:
        kept = source.values["save_last_n_steps"]
        to.say("training.keep_checkpoints", max(1, last // every), "save_last_n_steps", kept)
    else:
        to.say("training.keep_checkpoints", 10_000, "save_last_n_steps", "all", stated=False)
    set_trackers(source, "log_with", to)


DENSITY = "training.sigma.density"
_OF_BASE = ("flux_shift", "flux2_shift", "qwen_shift", "krea2_shift", "nextdit_shift")


def set_flow_noise(
    source: Source, to: Conversion, sampling: str = "sigma", shift: float = 1.0
) -> None:
    """Say which noise levels are trained, and how they count.

    Args:
        sampling: The program's default of ``timestep_sampling``.
        shift: The program's default of ``discrete_flow_shift``.
    """
    kind = source.read("timestep_sampling", text, sampling)
    row = ("timestep_sampling", kind)
    shift = source.read("discrete_flow_shift", number, shift)
    used = {"timestep_sampling", "weighting_scheme"}
    if kind == "sigma":
        used |= _by_weighting(source, shift, to)
    elif kind == "uniform":
        to.say(DENSITY, "uniform", *row)
    elif kind in {"sigmoid", "shift", *_OF_BASE}:
        used |= _moved(source, kind, shift, to)
    elif kind == "logsnr":
        used |= {"logit_mean", "logit_std"}
        source.say(to, DENSITY, "logit_normal", *row)
        for key, setting, factor, usual in (
            ("logit_mean", "mean", -0.5, 0.0),
            ("logit_std", "std", 0.5, 1.0),
        ):
            value = source.read(key, number, usual)
            source.say(to, f"training.sigma.{setting}", value * factor + 0.0, key, value)
    elif kind.startswith("qinglong"):
        to.say(DENSITY, "shifted", *row, "The largest part of its mixture of densities.")
    else:
        to.lack(*row, "There is no such density here.")
    for key in ("discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std", "mode_scale"):
        if key not in used:
            source.off(to, key, why=f"It means nothing with timestep_sampling {kind}.")


def _moved(source: Source, kind: str, shift: float, to: Conversion) -> set[str]:
    scale = source.read("sigmoid_scale", number, 1.0)
    moves = kind in _OF_BASE or (kind == "shift" and shift != 1.0)
    near = "Moved as the base's own scheduler says." if kind in _OF_BASE else ""
    density = "shifted" if moves else "logit_normal"
    source.say(to, DENSITY, density, "timestep_sampling", kind, near)
    if kind == "shift" and moves:
        source.say(to, "training.sigma.shift", shift, "discrete_flow_shift")
    source.say(to, "training.sigma.std", scale, "sigmoid_scale")
    return {"sigmoid_scale"} | ({"discrete_flow_shift"} if kind == "shift" else set())


def _by_weighting(source: Source, shift: float, to: Conversion) -> set[str]:
    """timestep_sampling sigma: the weighting scheme is the density, on the moved levels."""
    scheme = source.read("weighting_scheme", text, "none")
    key = "weighting_scheme"
    used = {"discrete_flow_shift"}
    if scheme == "logit_normal":
        mean = source.read("logit_mean", number, 0.0)
        std = source.read("logit_std", number, 1.0)
        to.say(DENSITY, "shifted" if shift != 1 else "logit_normal", key, scheme)
        # Levels are counted from noise there.
        source.say(to, "training.sigma.mean", -mean + 0.0, "logit_mean", mean)
        source.say(to, "training.sigma.std", std, "logit_std")
        used |= {"logit_mean", "logit_std"}
    elif scheme == "mode":
        scale = source.read("mode_scale", number, 1.29)
        to.say(DENSITY, "mode", key, scheme)
        source.say(to, "training.sigma.mode_scale", scale, "mode_scale")
        used.add("mode_scale")
    else:
        source.say(to, DENSITY, "uniform", "timestep_sampling", "sigma")
    if shift != 1:
        source.say(to, "training.sigma.shift", shift, "discrete_flow_shift")
    else:
        source.off(to, "discrete_flow_shift", why="1 moves nothing.")
    return used


def set_weighting(source: Source, to: Conversion) -> None:
    """Say how each noise level counts, where the weighting scheme is no density."""
    scheme = source.read("weighting_scheme", text, "none")
    kind = source.read("timestep_sampling", text, "sigma")
    if scheme in {"sigma_sqrt", "cosmap"}:
        to.say("training.loss.weighting", scheme, "weighting_scheme", scheme)
    elif source.has("weighting_scheme") and (scheme == "none" or kind != "sigma"):
        to.off("weighting_scheme", scheme)


def set_bounds(source: Source, to: Conversion, *, cut: bool) -> None:
    """Set the smallest and the largest noise level.

    Args:
        cut: Whether the density is cut off there, as here, and not pressed between them.
    """
    cut = cut or source.read("preserve_distribution_shape", flag, False)
    near = "" if cut else "Cut off here; there the whole density is pressed between the bounds."
    for key, setting in (("min_timestep", "min"), ("max_timestep", "max")):
        if source.has(key):
            value = source.read(key, number)
            to.say(f"training.sigma.{setting}", value / 1000, key, value, near)
    source.off(to, "preserve_distribution_shape", why="Bounds always cut off here.")
    if source.read("num_timestep_buckets", whole, 0) > 1:
        value = source.values["num_timestep_buckets"]
        near = "Spread evenly over the visits of each image here, over each epoch there."
        source.say(to, "training.sigma.stratified", True, "num_timestep_buckets", value, near)
