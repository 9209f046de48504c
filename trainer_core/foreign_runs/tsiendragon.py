"""Run files of qwen-image-finetune: YAML in sections, with references such as ``${cache.dir}``.

Source: tsiendragon/qwen-image-finetune at 460ba1aa, ``src/qflux/data/config.py``, and the page
that the design began with, which has older names of some keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..config.patterns import pattern_mistake
from ..errors import ConfigError
from .optimizers import set_optimizer_by
from .program import Given, Program, has, set_family
from .rules import (
    Conversion,
    Source,
    Together,
    UnfitError,
    flag,
    mapping,
    mappings,
    number,
    text,
    texts,
    whole,
    word_of,
)
from .table_text import read_tables
from .vocabulary import (
    ONE_SIZE,
    ending,
    set_masks,
    set_prompts,
    set_reading,
    set_schedule,
    set_sizes,
    set_table,
    set_trackers,
    set_warmup,
    share_or_keep,
    side_of,
    sides,
)

_NAME = "qwen-image-finetune"
_TABLES = read_tables("tsiendragon")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_LONGEST = 4096


def _convert(files: Given, to: Conversion) -> None:
    values = _resolved(files.name, files.documents[0].values)
    source = Source(files.name, values, _TABLES[""])
    source.apply(to)
    key = "trainer" if source.has("trainer") else "train.trainer"
    word = source.read(key, text, "QwenImageEdit")
    _adapter(source, to)
    set_family(to, files, _NAME, key, word)
    _optimizer(source, to)
    _dataset(source, to)
    _masks(source, to)
    _previews(source, to)
    set_trackers(source, "logging.report_to", to, "tensorboard")
    to.say(
        "output.layouts", ["comfyui", "diffusers"], "save_lora_weights", "diffusers", stated=False
    )


def _resolved(file: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace ``${section.key}`` by what stands there; what refers on is not followed far."""

    def found(name: str) -> Any:
        place: Any = values
        for part in name.split("."):
            place = place.get(part) if isinstance(place, Mapping) else None
        return place

    def resolve(value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return {name: resolve(each, depth) for name, each in value.items()}
        if isinstance(value, list):
            return [resolve(each, depth) for each in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole_text = _REFERENCE.fullmatch(value.strip())
        if depth > 8 or len(value) > _LONGEST:
            raise ConfigError(
                f"{file}: references in {value[:80]!r} lead on and on",
                "references to values",
                "Write the value itself.",
            )
        if whole_text:
            return resolve(found(whole_text[1]), depth + 1)
        return resolve(_REFERENCE.sub(lambda m: str(found(m[1]) or ""), value), depth + 1)

    return resolve(values, 0)


def _adapter(source: Source, to: Conversion) -> None:
    to.say("adapter.kind", "lora", "model.lora", "lora", stated=False)
    init = source.values.get("model.lora.init_lora_weights", "gaussian")
    if init in (True, "true", "normal"):
        near = "PEFT's own default is kaiming; so is that of LyCORIS."
        to.say("adapter.init", "lycoris", "model.lora.init_lora_weights", init, near)
    elif init == "gaussian":
        source.say(to, "adapter.init", "gaussian", "model.lora.init_lora_weights", init)
    else:
        to.lack("model.lora.init_lora_weights", init, "There is no such initialization here.")
    key = "model.lora.target_modules"
    targets = source.values.get(key) or ["to_k", "to_q", "to_v", "to_out.0"]
    if isinstance(targets, str):
        mistake = pattern_mistake(targets)
        if mistake:
            to.lack(key, targets, f"As an expression on names it {mistake}.")
        else:
            to.say("adapter.targets", [targets], key, targets)
    else:
        ours = source.read(key, ending) if source.has(key) else ending(targets)
        source.say(to, "adapter.targets", ours, key, targets)
    to.say(
        "training.sigma.density",
        "uniform",
        "compute_density_for_timestep_sampling",
        "none",
        stated=False,
    )


def _optimizer(source: Source, to: Conversion) -> None:
    args = dict(source.read("optimizer.init_args", mapping, {}))
    key = "optimizer.init_args"
    rate = args.pop("lr", None)
    if rate is not None:
        value = source.check(f"{key}.lr", rate, number)
        to.say("training.optimizer.learning_rate", value, f"{key}.lr", rate)
    path = source.read("optimizer.class_path", text, "torch.optim.AdamW")
    set_optimizer_by(source, to, ("optimizer.class_path", path), args, f"{key}.{{}}")
    _schedule(source, to)


def _schedule(source: Source, to: Conversion) -> None:
    key = "lr_scheduler.scheduler_type"
    name = source.read(key, text, "constant")
    cycles = source.read("lr_scheduler.num_cycles", number, 0.5)
    power = source.read("lr_scheduler.power", number, 1.0)
    ours = set_schedule(
        to,
        (key, name),
        cycles=("lr_scheduler.num_cycles", cycles),
        power=("lr_scheduler.power", power),
        named=source.has(key),
    )
    used = {"cosine_restarts": "num_cycles", "polynomial": "power"}.get(ours)
    for each in ("num_cycles", "power"):
        if each != used:
            source.off(to, f"lr_scheduler.{each}")
    set_warmup(source, to, "lr_scheduler.warmup_steps", name)


_CROPS = word_of(
    {
        "center_crop": "center",
        "resize": "stretch",
        "fixed_pixels": "center",
        "center_padding": "",
        "right_padding": "",
    }
)
_PROCESS = "data.init_args.processor.init_args."


def _dataset(source: Source, to: Conversion) -> None:
    folder = "data.init_args.dataset_path"
    value = source.values.get(folder)
    several = value if isinstance(value, list) else [value] if value else []
    paths = [each for each in several if isinstance(each, str)]
    for each in several:
        if not isinstance(each, str):
            to.lack(folder, each, "Data sets of a hub are not fetched: download it as a folder.")
    if paths[1:]:
        to.say("dataset.folders", [{"path": each} for each in paths[1:]], folder, paths[1:])
    if paths and paths[0].endswith(".csv"):
        set_table(to, folder, paths[0])
    elif paths:
        to.say("dataset.path", paths[0], folder, paths[0])
        to.say("dataset.layout", "paired", folder, paths[0])
        set_reading(to, folder, missing_caption="skip", masks=True)
    _sizes(source, to)
    key = f"{_PROCESS}process_type"
    if crop := source.read(key, _CROPS, "center"):
        source.say(to, "dataset.crop", crop, key, source.values.get(key))
    else:
        to.lack(key, source.values[key], "Images are not padded here; they are cropped.")


def _pixels(value: Any) -> int:
    """A number of pixels, also as ``512*512``."""
    factors = [whole(part.strip()) for part in text(value).split("*")]
    if len(factors) > 2 or min(factors) <= 0:
        raise UnfitError("a number of pixels, such as 262144 or 512*512")
    product = 1
    for each in factors:
        product *= each
    return product


def _all_pixels(value: Any) -> list[int]:
    if isinstance(value, Mapping):
        value = value.get("target") or []
    if not isinstance(value, list):
        raise UnfitError("a list of numbers of pixels")
    return [side_of(_pixels(each), 1) for each in value]


def _sizes(source: Source, to: Conversion) -> None:
    area = "Buckets have as many pixels; each image keeps about its shape."
    for key in ("data.init_args.image_size", f"{_PROCESS}target_size"):
        if source.has(key):
            to.say("dataset.resolution", source.read(key, sides), key, source.values[key], area)
    key = f"{_PROCESS}target_pixels"
    if source.has(key):
        side = side_of(source.read(key, _pixels), 1)
        to.say("dataset.resolution", side, key, source.values[key])
    key = f"{_PROCESS}multi_resolutions"
    if source.has(key):
        found = sorted(set(source.read(key, _all_pixels)), reverse=True)
        set_sizes(to, found, key, source.values[key], ONE_SIZE)
    key = f"{_PROCESS}controls_pixels"
    if source.has(key):
        value = source.values[key]
        first = value[0] if isinstance(value, list) and value else value
        to.say("dataset.control_area", source.check(key, first, _pixels), key, value)


def _masks(source: Source, to: Conversion) -> None:
    set_masks(source, to, "loss.mask_loss", _TABLES[" if masked"], "loss.mask_loss is off.")
    mask = "data.init_args.use_edit_mask"
    source.off(to, mask, why="Masks are read where there are some.")


_OF_ALL = {
    "width": ("width", whole),
    "height": ("height", whole),
    "guidance_scale": ("guidance", number),
    "num_inference_steps": ("steps", whole),
    "negative_prompt": ("negative_prompt", text),
}


def _previews(source: Source, to: Conversion) -> None:
    samples = source.read("validation.samples", mappings, [])
    most = source.read("validation.max_samples", whole, 4)
    if not source.read("validation.enabled", flag, False) or not samples:
        for key, value in source.values.items():
            if key.startswith("validation.") and isinstance(_TABLES[""].get(key), Together):
                to.off(key, value, "Nothing is validated there.")
        return
    key = "validation.steps" if source.has("validation.steps") else "validation.validation_steps"
    to.say("preview.every", source.read(key, whole, 100), key, source.values.get(key, 100))
    cut = ("validation.max_samples", "validation.num_validation_samples")
    source.off(to, *cut, why="It cuts the list of samples off.")
    kept = samples[: max(most, 0)]
    key = "validation.samples"
    prompts = [source.check(key, each.get("prompt") or "", text) for each in kept]
    controls = [source.check(key, each.get("images") or [], texts) for each in kept]
    own: list[dict[str, Any]] = [{} for _ in kept]
    for name in dict.fromkeys(name for sample in kept for name in sample):
        place, values = f"{key} ({name})", [sample.get(name) for sample in kept]
        if name in _OF_ALL and any(each is not None for each in values):
            setting, read = _OF_ALL[name]
            found = [None if each is None else source.check(place, each, read) for each in values]
            share_or_keep(to, setting, found, place, own)
        elif name not in {"prompt", "images", *_OF_ALL}:
            to.lack(place, values[0], "Previews have no such setting.")
    row = (f"{key} (prompt)", prompts)
    set_prompts(to, prompts, own, row, controls, f"{key} (images)")


PROGRAM = Program(
    name=_NAME,
    version="460ba1aa",
    tables=_TABLES,
    marks={
        "model.lora": has("model", "lora"),
        "model.pretrained_model_name_or_path": has("model", "pretrained_model_name_or_path"),
        "data.init_args": has("data", "init_args"),
    },
    convert=_convert,
)
