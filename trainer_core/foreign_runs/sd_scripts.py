"""Trainings of kohya's sd-scripts: a command line, the TOML of ``--config_file``, its datasets.

Source: kohya-ss/sd-scripts at 48d368fa, ``train_network.py``, ``library/train_util.py``,
``library/*_train_util*.py``, ``library/config_util.py``, and the scripts ``*_train_network.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .folders import Folder, set_folders
from .kohya import (
    DENSITY,
    apply_pairs,
    note_missing_datasets,
    read_parts,
    say_family_of_datasets,
    set_bounds,
    set_flow_noise,
    set_kind,
    set_memory,
    set_optimizer_of,
    set_run,
    set_weighting,
)
from .kohya_keys import EVERYWHERE, SCRIPT, SD, SD_SCRIPTS, TRAIN, has_subsets, is_of_sd_scripts
from .kohya_prompts import set_previews
from .program import Given, Program, set_family
from .rules import (
    Conversion,
    Note,
    Source,
    Table,
    Together,
    UnfitError,
    flag,
    mapping,
    mappings,
    number,
    numbers,
    text,
    whole,
)
from .vocabulary import set_reading

_NAME = "sd-scripts"
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
_FLOW = {"flux": ("sigma", 3.0), "lumina": ("shift", 6.0), "anima": ("sigmoid", 1.0)}
_FLOW |= {"hunyuan_image": ("sigma", 5.0)}
"""Scripts to their defaults of timestep_sampling and discrete_flow_shift."""
_PREVIEWS = {"flux": (512, 20, 3.5), "chroma": (512, 20, 1.0), "hunyuan_image": (512, 20, 3.5)}
_PREVIEWS |= {"lumina": (1024, 36, 3.5)}
_PREVIEWS |= dict.fromkeys(("sd", "sdxl", "sd3", "anima"), (512, 30, 7.5))
"""Scripts to the size, the steps and the guidance of a preview that says nothing of them."""


def _scripts() -> list[str]:
    return [f"{each}{TRAIN}" for each in SD_SCRIPTS]


def _convert(files: Given, to: Conversion) -> None:
    arguments, datasets = read_parts(files, to, _scripts(), has_subsets)
    source = Source(files.name, arguments, SD["arguments"])
    if arguments:
        source.apply(to)
        _convert_arguments(files, source, to)
    else:
        say_family_of_datasets(files, to, "pretrained_model_name_or_path")
    if datasets is not None:
        _read_subsets(*datasets, source, to)
        source.off(to, "train_data_dir", "reg_data_dir", why="The file of datasets wins over it.")
    else:
        note_missing_datasets(source, to)
        _read_named_folders(source, to)


def _convert_arguments(files: Given, source: Source, to: Conversion) -> None:
    script = _script(source)
    word = TRAIN if script == "sd" else f"{script}_{TRAIN}"
    chroma = script == "flux" and source.read("model_type", text, "flux") == "chroma"
    named = word if source.has(SCRIPT) else f"not named, and by its arguments {word}"
    word += " --model_type chroma" if chroma else ""
    set_family(to, files, _NAME, SCRIPT, word, named)
    _adapter(source, script, to)
    for key, name in (("use_8bit_adam", "AdamW8bit"), ("use_lion_optimizer", "Lion")):
        if source.read(key, flag, False) and not source.values.get("optimizer_type"):
            source.values["optimizer_type"] = name
    set_optimizer_of(source, to)
    _rates(source, "chroma" if chroma else script, to)
    _noise(source, script, to)
    _prediction(source, script, to)
    key = "apply_t5_attn_mask"
    if source.read(key, flag, False) and not chroma:
        to.lack(key, True, "The model attends to the padding of its text here; there it does not.")
    else:
        source.off(to, key, why="Text is masked as the model was trained.")
    _loss(source, script, to)
    set_memory(source, to)
    set_run(source, to)
    set_previews(files, source, to, *_PREVIEWS["chroma" if chroma else script])


def _script(source: Source) -> str:
    """The script, or what else tells the architecture; a file of arguments does not name one."""
    if script := source.read(SCRIPT, text, ""):
        return script
    module = source.read("network_module", text, "")
    named = (each.rstrip("_") for each in SD_SCRIPTS if each and module.endswith(each.rstrip("_")))
    by_key = (script for key, script in _TELLS.items() if source.has(key))
    return next(named, next(by_key, "sd"))


_KINDS = {"lora": "lora", "locon": "lora", "loha": "loha", "lokr": "lokr", "diag-oft": "oft"}
_MOST_RANK = 4096
_OF_UNET = {
    **dict.fromkeys(("attn-mlp", "unet-transformer-only", "full-lin"), "default"),
    "full": "convolutions",
    "attn-only": "attention",
}
_SOME_RANKS = "Convolutions have adapter.rank, too."


def _adapter(source: Source, script: str, to: Conversion) -> None:
    module = source.read("network_module", text, "networks.lora")
    rows = list(apply_pairs(source, "network_args", SD["network_args"], to))
    args = {name: (key, value) for name, key, value in rows}
    word = module.rsplit(".", 1)[-1]
    key = "network_module"
    if lycoris := module.startswith("lycoris"):
        key, word = args.get("algo", (key, "lora"))
    kind = _KINDS.get(word.lower() if lycoris else word.split("_")[0])
    kind = None if word == "lora_fa" else kind
    set_kind(source, to, word if lycoris else module, kind, key)
    rank = source.read("network_dim", whole, 4)
    if kind == "lokr" and rank > _MOST_RANK:
        near = "A rank above that of every layer keeps its factor whole."
        to.say("adapter.full_matrix", True, "network_dim", rank, near)
    else:
        source.say(to, "adapter.rank", rank, "network_dim")
    if to.values.get("adapter.dora"):
        key, value = args.get("wd_on_output", ("network_args (wd_on_output)", "True"))
        axis = "output" if source.check(key, value, flag) else "input"
        to.say("adapter.dora_axis", axis, key, value, stated="wd_on_output" in args)
    elif "wd_on_output" in args:
        to.off(*args["wd_on_output"], "There is no DoRA.")
    if script in _STABLE:
        _targets_of_unet(source, args, to, lycoris=lycoris)
    elif script == "flux":
        _targets_of_flux(source, args, to)
    for name in ("algo", "preset", "conv_dim", *_BLOCKS, "train_blocks"):
        if name in args and not any(note.key == args[name][0] for note in to.notes):
            to.off(*args[name], "It means nothing with this network and model.")


def _targets_of_unet(
    source: Source, args: dict[str, tuple[str, str]], to: Conversion, *, lycoris: bool
) -> None:
    """Say which layers of a UNet are adapted: with convolutions, or without."""
    key, value = args.get("preset", ("network_args (preset)", "full"))
    if lycoris:
        targets = _OF_UNET.get(value)
        if targets is None:
            to.lack(key, value, "adapter.targets takes a preset or patterns of names.")
        else:
            to.say("adapter.targets", targets, key, value, stated="preset" in args)
    if "conv_dim" in args:
        key, value = args["conv_dim"]
        convolved = lycoris or source.check(key, value, whole) > 0
        same = number(value) == source.read("network_dim", whole, 4)
        near = "" if same else _SOME_RANKS
        if convolved and to.values.get("adapter.targets", "convolutions") == "convolutions":
            to.say("adapter.targets", "convolutions", key, value, near)


_BLOCKS = {
    "train_double_block_indices": "transformer_blocks",
    "train_single_block_indices": "single_transformer_blocks",
}
_OTHERS_BLOCKS = {"single": "train_double_block_indices", "double": "train_single_block_indices"}


def _targets_of_flux(source: Source, args: dict[str, tuple[str, str]], to: Conversion) -> None:
    """Say which blocks of FLUX are adapted."""
    rows = {name: args[name] for name in (*_BLOCKS, "train_blocks") if name in args}
    if not rows:
        return
    left_out = _OTHERS_BLOCKS.get(args.get("train_blocks", ("", ""))[1])
    patterns: list[str] = []
    for name, block in _BLOCKS.items():
        key, value = args.get(name, ("", "all"))
        chosen = source.check(key, value, _block_numbers) if name != left_out else []
        if chosen is None:
            patterns.append(rf"{block}\..*")
        elif chosen:
            patterns.append(rf"{block}\.({'|'.join(map(str, chosen))})\..*")
    for row in rows.values():
        if patterns:
            to.say("adapter.targets", patterns, *row)
        else:
            to.lack(*row, "No block would be adapted.")


def _block_numbers(value: str) -> list[int] | None:
    """``all``, ``none``, or numbers and ranges as ``0-3,7``; None for all."""
    if value == "all":
        return None
    found: list[int] = []
    for part in value.split(",") if value not in ("none", "") else ():
        first, _, last = part.partition("-")
        start, end = whole(first), whole(last or first)
        if not 0 <= start <= end < 1000:
            raise UnfitError("numbers of blocks, as 0-3,7, or all or none")
        found += range(start, end + 1)
    return sorted(set(found))


def _rates(source: Source, script: str, to: Conversion) -> None:
    """Say the learning rates, and whether a text encoder is trained."""
    usual = source.read("learning_rate", number, 2e-6)
    key = "unet_lr" if source.has("unet_lr") else "learning_rate"
    source.say(to, "training.optimizer.learning_rate", source.read(key, number, usual), key)
    if key == "unet_lr":
        source.off(to, "learning_rate", why="unet_lr wins over it.")
    rates = source.read("text_encoder_lr", _rates_of, [])
    only = source.read("network_train_unet_only", flag, False)
    key, section = "network_train_unet_only", "training.text_encoder"
    if only or (rates and not any(rates)):
        source.off(to, key, "text_encoder_lr", why="The text encoder stays as it is.")
    elif script not in (*_STABLE, "flux"):
        to.lack(key, only, "Its text encoder is not trained here.")
        source.off(to, "text_encoder_lr", why="Its text encoder is not trained here.")
    else:
        to.say(f"{section}.train", True, key, only, stated=source.has(key))
        near = "The first text encoder's rate is that of all." if len(set(rates)) > 1 else ""
        rate = rates[0] if rates else usual
        row = source.values.get("text_encoder_lr", rate)
        source.say(to, f"{section}.learning_rate", rate, "text_encoder_lr", row, near)
        rank = to.values.get("adapter.rank")
        if rank is not None:
            to.say(f"{section}.rank", rank, "network_dim", rank, stated=source.has("network_dim"))


def _rates_of(value: Any) -> list[float]:
    return numbers(value) if isinstance(value, list) else [number(value)]


def _noise(source: Source, script: str, to: Conversion) -> None:
    if script in _FLOW:
        sampling, shift = _FLOW[script]
        set_flow_noise(source, to, sampling, shift)
        source.off(to, "min_timestep", "max_timestep", why="This script reads no bounds.")
        source.off(to, "noise_offset", why="This script adds none.")
        if script == "anima":
            set_weighting(source, to)
        elif source.values.get("weighting_scheme") in {"sigma_sqrt", "cosmap"}:
            why = "It weighs with model_prediction_type sigma_scaled alone."
            source.off(to, "weighting_scheme", why=why)
    elif script == "sd3":
        shift = source.read("training_shift", number, 1.0)
        # It has no timestep_sampling: the weighting scheme alone is the density.
        set_flow_noise(source, to, "sigma", 1.0)
        if shift != 1:
            to.say("training.sigma.shift", shift, "training_shift", shift)
        set_bounds(source, to, cut=False)
        if source.values.get("weighting_scheme") != "sigma_sqrt":
            why = "There it is of the image: sigma^2 times that of the velocity."
            to.lack("the loss", "without weighting_scheme sigma_sqrt", why)
        source.off(to, "noise_offset", why="This script adds none.")
    else:
        to.say(DENSITY, "auto", "timesteps", "each as often", stated=False)
        set_bounds(source, to, cut=True)
        offset = source.read("noise_offset", number, 0.0)
        if source.has("noise_offset"):
            to.say("training.loss.noise_offset", offset, "noise_offset", offset)
    for key in _OF_FLOW:
        if script in _STABLE or (script == "sd3" and key not in _OF_SD3):
            source.off(to, key, why="This script does not read it.")


def _prediction(source: Source, script: str, to: Conversion) -> None:
    """Say what the model is told of guidance, and note what it is to predict."""
    guidance = source.read("guidance_scale", number, 3.5)
    if script == "flux":
        source.say(to, "training.guidance", guidance, "guidance_scale")
    else:
        source.off(to, "guidance_scale", why="This script does not read it.")
    key = "model_prediction_type"
    kind = source.read(key, text, "sigma_scaled" if script == "flux" else "raw")
    if script not in _FLOW or script == "anima":
        source.off(to, key, why="This script does not read it.")
    elif kind != "raw" or source.has(key):
        predicted = "The velocity is what is predicted, as with raw."
        (to.off if kind == "raw" else to.lack)(key, kind, predicted)


_OF_SD3 = ("weighting_scheme", "logit_mean", "logit_std", "mode_scale")
_OF_FLOW = (*_OF_SD3, "timestep_sampling", "discrete_flow_shift", "sigmoid_scale")

_LOSSES = {"l2": "mse", "l1": "mae", "huber": "huber", "smooth_l1": "huber"}
_DELTAS = {
    "constant": ("constant", ""),
    "exponential": ("sigma", ""),
    "snr": ("sigma", "There it follows the signal-to-noise ratio."),
}


def _loss(source: Source, script: str, to: Conversion) -> None:
    kind = source.read("loss_type", text, "l2")
    if kind not in _LOSSES:
        to.lack("loss_type", kind, "There is no such loss here; mse stands in its place.")
    else:
        near = "There it is divided by huber_delta." if kind == "smooth_l1" else ""
        source.say(to, "training.loss.kind", _LOSSES[kind], "loss_type", kind, near)
    schedule = source.read("huber_schedule", text, "snr")
    if _LOSSES.get(kind) != "huber" or schedule not in _DELTAS:
        why = "It means nothing with this loss."
        source.off(to, "huber_c", "huber_scale", "huber_schedule", why=why)
    else:
        ours, near = _DELTAS[schedule]
        source.say(to, "training.loss.huber_schedule", ours, "huber_schedule", schedule, near)
        delta, scale = source.read("huber_c", number, 0.1), source.read("huber_scale", number, 1.0)
        delta = delta * scale if ours == "constant" else delta
        source.say(to, "training.loss.huber_delta", delta, "huber_c")
        if ours == "constant" or scale == 1:
            source.off(to, "huber_scale", why="It is in training.loss.huber_delta.")
        else:
            to.lack("huber_scale", scale, "training.loss.huber_delta grows to 1 at the image.")
    gamma = source.read("min_snr_gamma", number, 0.0)
    debiased = source.read("debiased_estimation_loss", flag, False)
    keys = ("min_snr_gamma", "debiased_estimation_loss")
    if script not in _STABLE:
        source.off(to, *keys, why="This script does not weight its loss so.")
    elif gamma:
        to.say("training.loss.weighting", "min_snr", keys[0], gamma)
        to.say("training.loss.snr_gamma", gamma, keys[0], gamma)
        if debiased:
            to.lack(keys[1], True, "Weights are not multiplied here; min_snr_gamma counts.")
    elif debiased:
        to.say("training.loss.weighting", "debiased", keys[1], True)


_SOME_CAPTIONS = (
    "Where some images of a folder have captions, those without stop the run; there the folder's "
    "name is their caption."
)


_FILE: Table = {"general": Together("dataset"), "datasets": Together("dataset")}


def _read_subsets(name: str, values: Mapping[str, Any], arguments: Source, to: Conversion) -> None:
    """Turn the subsets of all datasets into folders.

    Args:
        arguments: Of the training, which hold where the file says nothing.
    """
    top = Source(name, values, _FILE)
    top.tell_unknown(to)
    general = Source(name, top.read("general", mapping, {}), SD["datasets"], "general.")
    general.tell_unknown(to)
    folders: list[Folder] = []
    for place, each in enumerate(top.read("datasets", mappings, [])):
        dataset = Source(name, each, SD["datasets"], f"datasets[{place}].")
        dataset.tell_unknown(to)
        for number_, subset in enumerate(dataset.read("subsets", mappings, [])):
            source = Source(name, subset, SD["datasets"], f"{dataset.prefix}subsets[{number_}].")
            folder = _folder(source, (arguments, general, dataset))
            folders.append(replace(folder, group=dataset.prefix.rstrip(".")))
    set_folders(to, folders)


def _read_named_folders(arguments: Source, to: Conversion) -> None:
    """Turn ``train_data_dir`` and ``reg_data_dir``, of folders named ``10_name``, into ours."""
    known = {key: value for key, value in arguments.values.items() if key in EVERYWHERE}
    folders: list[Folder] = []
    for key, role in (("train_data_dir", "train"), ("reg_data_dir", "regularization")):
        if not arguments.has(key):
            continue
        own, path = Conversion(), arguments.read(key, text)
        own.say("dataset.path", path, key, path)
        own.say("dataset.layout", "kohya", key, path, _SOME_CAPTIONS)
        source = Source(arguments.file, known, EVERYWHERE)
        _read_captions(source, own)
        masked = _read_masks(source, own, key)
        set_reading(own, key, missing_caption="error", subfolders=True, masks=masked)
        folders.append(replace(_with_role(arguments, own, role, key), group="reg_data_dir"))
    if folders:
        set_folders(to, folders)
    else:
        _read_captions(Source(arguments.file, known, EVERYWHERE), to)


def _folder(subset: Source, above: Sequence[Source]) -> Folder:
    """A subset as a folder.

    Args:
        above: The arguments, ``general`` and its dataset: what each says where the next is silent.
    """
    to = Conversion()
    places: dict[str, str] = {}
    values = dict(subset.values)
    for layer in above[::-1]:
        for key in layer.values.keys() & (SD["datasets"].keys() - {"subsets"}):
            if layer.has(key) and values.get(key) is None:
                values[key], places[key] = layer.values[key], layer.prefix
    source = Source(subset.file, values, SD["datasets"], subset.prefix)
    _read_captions(source, to)
    path = f"{source.prefix}image_dir"
    if source.has("image_dir"):
        folder = source.read("image_dir", text)
        to.say("dataset.path", folder, path, folder)
    masked = _read_masks(source, to, source.prefix.rstrip("."))
    set_reading(to, path, missing_caption="empty", masks=masked)
    role = "regularization" if source.read("is_reg", flag, False) else "train"
    if role != "train":
        to.tell("dataset.folders", f"{source.prefix}is_reg", True)
    to.finish()
    to.notes = [_where_it_stands(note, source.prefix, places) for note in to.notes]
    return _with_role(above[0], to, role, source.prefix.rstrip("."))


def _where_it_stands(note: Note, prefix: str, places: Mapping[str, str]) -> Note:
    """A note by the key that says it, which may stand above the subset."""
    key = note.key.removeprefix(prefix)
    return replace(note, key=f"{places[key]}{key}") if key in places else note


def _with_role(arguments: Source, to: Conversion, role: str, key: str) -> Folder:
    weight = arguments.read("prior_loss_weight", number, 1.0) if role != "train" else 1.0
    return Folder(to, role, weight, key)


def _read_captions(source: Source, to: Conversion) -> None:
    """What an argument, a dataset and a subset may say of sizes and captions."""
    if source.has("caption_extention"):
        source.values["caption_extension"] = source.values["caption_extention"]
    source.apply(to)
    upscale = not source.read("bucket_no_upscale", flag, False)
    source.say(to, "dataset.upscale", upscale, "bucket_no_upscale", not upscale)
    if not source.read("enable_bucket", flag, False):
        why = "Images are always put into buckets of like shape; there all get one shape."
        to.lack(f"{source.prefix}enable_bucket", False, why)
    if source.read("enable_wildcard", flag, False):
        source.say(to, "dataset.captions.wildcards", True, "enable_wildcard")
        source.say(to, "dataset.captions.variants", "lines", "enable_wildcard", True)
    shuffled = source.read("shuffle_caption", flag, False)
    if shuffled:
        near = "Another order in each of 8 epochs; there in each step."
        source.say(to, "dataset.captions.shuffle", 8, "shuffle_caption", True, near)
        source.take(to, "keep_tokens", "dataset.captions.keep", whole)
    else:
        source.off(to, "keep_tokens", why="No tag is moved without shuffle_caption.")
    rate, key = source.read("caption_tag_dropout_rate", number, 0.0), "caption_tag_dropout_rate"
    if rate and shuffled:
        near = "The order that is written keeps all its tags."
        source.say(to, "dataset.captions.drop", rate, key, near=near)
    elif rate:
        to.lack(f"{source.prefix}{key}", rate, "Tags are dropped of shuffled captions alone.")


def _read_masks(source: Source, to: Conversion, key: str) -> bool:
    """Say where masks are, and that what is black in them is not trained."""
    alpha = source.read("alpha_mask", flag, False)
    if alpha:
        source.say(to, "dataset.mask.source", "alpha", "alpha_mask", True)
    elif source.values.get("conditioning_data_dir"):
        folder = source.read("conditioning_data_dir", text)
        source.say(to, "dataset.mask_folder", folder, "conditioning_data_dir")
    else:
        return False
    for setting, value in (("background", 0.0), ("normalize", False)):
        to.say(f"dataset.mask.{setting}", value, f"{key} ({setting})", value, stated=False)
    return True


PROGRAM = Program(
    name=_NAME,
    version="48d368fa",
    tables=SD,
    marks={"arguments of a training of an adapter, or datasets with subsets": is_of_sd_scripts},
    convert=_convert,
    beside=is_of_sd_scripts,
    scripts=_scripts,
)
