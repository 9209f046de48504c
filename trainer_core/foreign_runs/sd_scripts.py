"""Command line and TOML of kohya's sd-scripts; its keys: `keys/sd_scripts.txt`.

Source: kohya-ss/sd-scripts at 48d368fa, ``train_network.py``, ``library/train_util.py``,
``library/*_train_util*.py``, ``library/config_util.py``, and the scripts ``*_train_network.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .conversion import Conversion, Maps, NoCounterpart, Note, Source, Table, Together
from .dataset_folders import Folder, set_folders
from .key_table_parser import read_tables
from .kohya import (
    BOTH,
    LISTED,
    SCRIPT,
    TRAIN,
    arguments_of,
    lists_datasets,
    read_parts,
    script_word,
    set_adapter,
    set_samples,
    set_steps,
    without_sections,
)
from .program import ConversionInput, Program, set_family
from .shared_settings import say_family_of_datasets
from .value_readers import UnfitError, mapping, mappings, number, numbers, text, whole

_NAME = "sd-scripts"
_TABLES = read_tables("sd_scripts")
_EVERYWHERE = _TABLES.pop("everywhere")
"""What an argument, ``general``, a dataset and a subset may say, the last first."""
_PASSED_ON = [
    row
    if isinstance(row, NoCounterpart | Together) and not row.conditions
    else Together(row.keys, [], None, row.setting if isinstance(row, Maps) else "dataset")
    for row in _EVERYWHERE.rows
]
_TABLES[""] = BOTH + Table([*_PASSED_ON, *_TABLES[""].rows], _TABLES[""].sections)
_TABLES["datasets"] = _EVERYWHERE + _TABLES.pop("subset")
_TABLES["named"] = _EVERYWHERE + _TABLES["named"]
_TELLING = {
    *("network_module", "network_dim", "network_alpha", "network_args", "train_data_dir"),
    *("dataset_config", "network_train_unet_only"),
}
_OWN = arguments_of(_TABLES[""])
_OF_MUSUBI = arguments_of(read_tables("musubi")[""]) - _OWN
_OWN -= arguments_of(BOTH) | arguments_of(read_tables("musubi")[""])

_SCRIPTS = ("", "sdxl_", "flux_", "sd3_", "lumina_", "anima_", "hunyuan_image_")
"""What stands in front of `TRAIN` in the scripts that train an adapter."""
_STABLE = ("sd", "sdxl")
_TELLS = {
    "gemma2": "lumina",
    "qwen3": "anima",
    "byt5": "hunyuan_image",
    "clip_g": "sd3",
    "t5xxl": "flux",
    "ae": "flux",
}
"""Arguments of one script alone, to the script; the first that is there counts."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "flux": {"discrete_flow_shift": 3.0, "model_prediction_type": "sigma_scaled"},
    "lumina": {"timestep_sampling": "shift", "discrete_flow_shift": 6.0},
    "anima": {"timestep_sampling": "sigmoid"},
    "hunyuan_image": {"discrete_flow_shift": 5.0},
    **{script: {"timestep_sampling": ""} for script in _STABLE},
}
_OF_SHIFTS = ("timestep_sampling", "discrete_flow_shift", "sigmoid_scale")
_OF_FLOW = (*_OF_SHIFTS, "weighting_scheme", "logit_mean", "logit_std", "mode_scale")
_OF_NOISE = ("min_timestep", "max_timestep", "noise_offset")
_OF_WEIGHTS = ("min_snr_gamma", "debiased_estimation_loss")
_UNREAD: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_STABLE, (*_OF_FLOW, "model_prediction_type")),
    "sd3": (*_OF_SHIFTS, *_OF_WEIGHTS, "noise_offset", "model_prediction_type"),
    "anima": (*_OF_NOISE, *_OF_WEIGHTS, "model_prediction_type"),
    **dict.fromkeys(("flux", "lumina", "hunyuan_image"), (*_OF_NOISE, *_OF_WEIGHTS)),
}
"""Scripts to arguments that they take and do not read."""
_PREVIEWS = {
    **dict.fromkeys(("flux", "hunyuan_image"), (512, 20, 3.5)),
    "chroma": (512, 20, 1.0),
    "lumina": (1024, 36, 3.5),
    **dict.fromkeys(("sd", "sdxl", "sd3", "anima"), (512, 30, 7.5)),
}
"""Scripts to the size, the steps and the guidance of a preview that says nothing of them."""
_KINDS = {"lora": "lora", "locon": "lora", "loha": "loha", "lokr": "lokr", "diag-oft": "oft"}
_MOST_RANK = 4096
_BLOCKS = {
    "train_double_block_indices": "transformer_blocks",
    "train_single_block_indices": "single_transformer_blocks",
}
_OTHERS_BLOCKS = {"single": "train_double_block_indices", "double": "train_single_block_indices"}


def _scripts() -> list[str]:
    return [f"{each}{TRAIN}" for each in _SCRIPTS]


def _has_subsets(values: Mapping[str, Any]) -> bool:
    return lists_datasets(values, "subsets")


def is_of_sd_scripts(values: Mapping[str, Any]) -> bool:
    """Whether a file has arguments of a training of sd-scripts, or its datasets."""
    if script := script_word(values):
        return script in _scripts()
    keys = without_sections(values).keys()
    own = len(keys & _OWN) > len(keys & _OF_MUSUBI)
    return _has_subsets(values) or bool(own and keys & _TELLING)


def _convert(files: ConversionInput, to: Conversion) -> None:
    named, arguments, datasets = read_parts(files, to, _scripts(), _has_subsets)
    script = named or _script_of(arguments)
    source = Source(
        files.name,
        _read_by(script, arguments, to),
        _TABLES[""],
        facts=_facts(script, arguments),
        defaults=_DEFAULTS.get(script),
        listed=LISTED,
    )
    if named or arguments:
        for key, name in (("use_8bit_adam", "AdamW8bit"), ("use_lion_optimizer", "Lion")):
            if source.on(key) and not source.values.get("optimizer_type"):
                source.values["optimizer_type"] = name
        source.apply(to)
        _set_base(files, source, named, to)
        _set_adapter(source, script, to)
        set_steps(source, to)
        _set_text_encoder(source, to)
        _set_noise(source, script, to)
        set_samples(files, source, to, *_PREVIEWS[source.facts["@model"]])
    else:
        say_family_of_datasets(files, to, "pretrained_model_name_or_path")
    if datasets is not None:
        _read_subsets(*datasets, source, to)
        source.unused(
            to, "train_data_dir", "reg_data_dir", why="The file of datasets wins over it."
        )
    else:
        _read_named_folders(source, to)


def _script_of(arguments: Mapping[str, Any]) -> str:
    """The script that a file of arguments is for, which does not name it."""
    module = str(arguments.get("network_module"))
    named = (each.rstrip("_") for each in _SCRIPTS if each and module.endswith(each.rstrip("_")))
    by_key = (script for key, script in _TELLS.items() if arguments.get(key) is not None)
    return next(named, next(by_key, "sd"))


def _read_by(script: str, arguments: Mapping[str, Any], to: Conversion) -> dict[str, Any]:
    """The arguments that a script reads."""
    unread = [key for key in _UNREAD[script] if arguments.get(key) is not None]
    for key in unread:
        to.unused(key, arguments[key], "This script does not read it.")
    return {k: each for k, each in arguments.items() if k not in unread}


def _facts(script: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    chroma = script == "flux" and arguments.get("model_type") == "chroma"
    network = arguments.get("network_args")
    rank = network.get("conv_dim") if isinstance(network, Mapping) else None
    return {
        "@same": str(rank) == str(arguments.get("network_dim", 4)),
        "@script": script,
        "@model": "chroma" if chroma else script,
        "@weighs": script == "anima",
        "@cut": script in _STABLE,
    }


def _set_base(files: ConversionInput, source: Source, script_named: str, to: Conversion) -> None:
    script = source.facts["@script"]
    word = TRAIN if script == "sd" else f"{script}_{TRAIN}"
    named = word if script_named else f"not named, and by its arguments {word}"
    word += " --model_type chroma" if source.facts["@model"] == "chroma" else ""
    set_family(to, files, _NAME, SCRIPT, word=word, stated=named)


def _set_adapter(source: Source, script: str, to: Conversion) -> None:
    kind = set_adapter(source, to, _KINDS)
    rank = source.read("network_dim", whole, 4)
    if kind == "lokr" and rank > _MOST_RANK:
        near = "A rank above that of every layer keeps its factor whole."
        source.set(to, "adapter.full_matrix", True, "network_dim", rank, near)
    else:
        source.set(to, "adapter.rank", rank, "network_dim")
    if script == "flux":
        _set_layers_of_flux(source, to)


def _set_layers_of_flux(source: Source, to: Conversion) -> None:
    """Say which blocks of FLUX are adapted."""
    keys = [f"network_args.{name}" for name in (*_BLOCKS, "train_blocks")]
    rows = [key for key in keys if source.has(key)]
    left_out = _OTHERS_BLOCKS.get(source.values.get("network_args.train_blocks", ""))
    patterns: list[str] = []
    for name, block in _BLOCKS.items():
        chosen = source.read(f"network_args.{name}", _block_numbers) if name != left_out else []
        if chosen is None:
            patterns.append(rf"{block}\..*")
        elif chosen:
            patterns.append(rf"{block}\.({'|'.join(map(str, chosen))})\..*")
    for key in rows:
        if patterns:
            source.set(to, "adapter.targets", patterns, key, source.values[key])
        else:
            to.missing(source.name(key), source.values[key], "No block would be adapted.")


def _block_numbers(value: str) -> list[int] | None:
    """``all``, ``none``, or numbers and ranges as ``0-3,7``; None for all."""
    if value == "all":
        return None
    found: set[int] = set()
    for part in value.split(",") if value not in ("none", "") else ():
        first, _, last = part.partition("-")
        start, end = whole(first), whole(last or first)
        if not 0 <= start <= end < 1000:
            raise UnfitError("numbers of blocks, as 0-3,7, or all or none")
        found |= {*range(start, end + 1)}
    return sorted(found)


def _set_text_encoder(source: Source, to: Conversion) -> None:
    """Say whether a text encoder is trained, at which rate."""
    rates = source.read("text_encoder_lr", numbers, [])
    key, section = "network_train_unet_only", "training.text_encoder"
    only = source.on(key)
    if only or (rates and not any(rates)):
        source.unused(to, key, "text_encoder_lr", why="The text encoder stays as it is.")
    elif source.facts["@model"] not in (*_STABLE, "flux"):
        to.missing(key, only, "Its text encoder is not trained here.")
        source.unused(to, "text_encoder_lr", why="Its text encoder is not trained here.")
    else:
        source.set(to, f"{section}.train", True, key, only)
        near = "The first text encoder's rate is that of all." if len(set(rates)) > 1 else ""
        rate = rates[0] if rates else source.read("learning_rate", number, 2e-6)
        stated = source.values.get("text_encoder_lr", rate)
        source.set(to, f"{section}.learning_rate", rate, "text_encoder_lr", stated, near)
        if rank := to.values.get("adapter.rank"):
            source.set(to, f"{section}.rank", rank, "network_dim")


def _set_noise(source: Source, script: str, to: Conversion) -> None:
    """Say what a script does whatever its arguments say, and how far huber counts as a square."""
    if script in _STABLE:
        to.set("training.sigma.density", "auto", "timesteps", "each as often", stated=False)
    if script == "sd3" and source.word("weighting_scheme") != "sigma_sqrt":
        why = "There it is of the image: sigma^2 times that of the velocity."
        to.missing("the loss", "without weighting_scheme sigma_sqrt", why)
    if "training.loss.huber_schedule" not in to.values:
        source.unused(to, "huber_c", "huber_scale", why="It means nothing with this loss.")
        return
    delta, scale = source.read("huber_c", number, 0.1), source.read("huber_scale", number, 1.0)
    fixed = to.values["training.loss.huber_schedule"] == "constant"
    source.set(to, "training.loss.huber_delta", delta * scale if fixed else delta, "huber_c")
    if fixed or scale == 1:
        source.unused(to, "huber_scale", why="It is in training.loss.huber_delta.")
    else:
        to.missing("huber_scale", scale, "training.loss.huber_delta grows to 1 at the image.")


def _read_subsets(name: str, values: Mapping[str, Any], arguments: Source, to: Conversion) -> None:
    """Turn the subsets of all datasets into folders.

    Args:
        arguments: Of the training, which hold where the file says nothing.
    """
    top = Source(name, values, _TABLES["file"])
    table = _TABLES["datasets"]
    general = Source(name, top.read("general", mapping, {}), table, "general.")
    for each in (top, general):
        each.note_unknown_keys(to)
    folders: list[Folder] = []
    for place, each in enumerate(top.read("datasets", mappings, [])):
        dataset = Source(name, each, table, f"datasets[{place}].")
        dataset.note_unknown_keys(to)
        for at, values in enumerate(dataset.read("subsets", mappings, [])):
            subset = Source(name, values, table, f"{dataset.prefix}subsets[{at}].")
            folder = _folder(subset, (arguments, general, dataset))
            folders.append(replace(folder, group=dataset.prefix.rstrip(".")))
    set_folders(to, folders)


def _read_named_folders(arguments: Source, to: Conversion) -> None:
    """Turn ``train_data_dir`` and ``reg_data_dir``, of folders named ``10_name``, into ours."""
    known = {key: each for key, each in arguments.values.items() if _EVERYWHERE.row(key)}
    folders: list[Folder] = []
    for key, role in (("train_data_dir", "train"), ("reg_data_dir", "regularization")):
        if not arguments.has(key):
            continue
        own, path = Conversion(), arguments.read(key, text)
        near = (
            "Where some images of a folder have captions, those without stop the run; there the "
            "folder's name is their caption."
        )
        own.set("dataset.path", path, key, path)
        own.set("dataset.layout", "kohya", key, path, near)
        Source(arguments.file, known, _TABLES["named"]).apply(own)
        weight = _weight(arguments, role)
        folders.append(Folder(own, role, weight, key=key, group="reg_data_dir"))
    if folders:
        set_folders(to, folders)
    else:
        Source(arguments.file, known, _EVERYWHERE).apply(to)


def _weight(arguments: Source, role: str) -> float:
    return arguments.read("prior_loss_weight", number, 1.0) if role != "train" else 1.0


def _folder(subset: Source, above: Sequence[Source]) -> Folder:
    """A subset as a folder.

    Args:
        above: The arguments, ``general`` and its dataset: what each says where the next is silent.
    """
    to = Conversion()
    places: dict[str, str] = {}
    values = dict(subset.values)
    for layer in above[::-1]:
        for key in layer.values:
            known = _TABLES["datasets"].row(key) is not None and key != "subsets"
            if known and layer.has(key) and values.get(key) is None:
                values[key], places[key] = layer.values[key], layer.prefix
    source = Source(subset.file, values, _TABLES["datasets"], subset.prefix)
    source.apply(to)
    if source.has("image_dir"):
        source.set(to, "dataset.path", source.read("image_dir", text), "image_dir")
    role = "regularization" if source.on("is_reg") else "train"
    if role != "train":
        to.applied("dataset.folders", source.name("is_reg"), True)
    to.finish()
    to.notes = [_where_it_stands(note, source.prefix, places) for note in to.notes]
    return Folder(to, role, _weight(above[0], role), source.prefix.rstrip("."))


def _where_it_stands(note: Note, prefix: str, places: Mapping[str, str]) -> Note:
    """A note by the key that says it, which may stand above the subset."""
    key = note.key.removeprefix(prefix)
    return replace(note, key=f"{places[key]}{key}") if key in places else note


PROGRAM = Program(
    name=_NAME,
    version="48d368fa",
    tables=_TABLES,
    marks={"arguments of a training of an adapter, or datasets with subsets": is_of_sd_scripts},
    convert=_convert,
    beside=is_of_sd_scripts,
    scripts=_scripts,
)
