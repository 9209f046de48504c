"""Run files of qwen-image-finetune, YAML; what becomes of its keys: `keys/tsiendragon.txt`.

Source: tsiendragon/qwen-image-finetune at 460ba1aa, ``src/qflux/data/config.py``, and the page
that the design began with, which has older names of some keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..config.patterns import pattern_mistake
from ..errors import ConfigError
from .conversion import Conversion, Source
from .key_table_parser import read_tables
from .optimizers import set_optimizer
from .program import ConversionInput, Program, has, set_family
from .shared_settings import ONE_SIZE, set_list_of_images, set_previews, set_sizes
from .value_readers import UnfitError, ending, mappings, pixels, side_of, text, whole

_NAME = "qwen-image-finetune"
_TABLES = read_tables("tsiendragon")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_LONGEST = 4096
_OF_SAMPLES = (
    *("width", "height", "guidance_scale", "num_inference_steps", "negative_prompt", "images"),
)


def _convert(files: ConversionInput, to: Conversion) -> None:
    values = _resolved(files.name, files.documents[0].values)
    source = Source(files.name, values, _TABLES[""])
    previews = source.on("validation.enabled") and source.values.get("validation.samples")
    paths = str(source.values.get("data.init_args.dataset_path", ".csv"))
    folder = not paths.strip("[]'").endswith(".csv")
    source.facts = {"@previews": bool(previews), "@folder": folder}
    source.apply(to)
    key = "trainer" if source.has("trainer") else "train.trainer"
    _set_targets(source, to)
    set_family(to, files, _NAME, key, word=source.read(key, text, "QwenImageEdit"))
    word = source.read("optimizer.class_path", text, "torch.optim.AdamW")
    set_optimizer(source, to, "optimizer.class_path", "optimizer.init_args", word=word)
    _set_dataset(source, to)
    if previews:
        key, most = "validation.samples", source.read("validation.max_samples", whole, 4)
        set_previews(
            source, to, source.read(key, mappings)[: max(most, 0)], place=key, names=_OF_SAMPLES
        )
    else:
        source.unused(to, "validation.samples", why="Nothing is validated there.")


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


def _set_targets(source: Source, to: Conversion) -> None:
    key = "model.lora.target_modules"
    targets = source.values.get(key) or ["to_k", "to_q", "to_v", "to_out.0"]
    mistake = pattern_mistake(targets) if isinstance(targets, str) else ""
    if mistake:
        to.missing(key, targets, f"As an expression on names it {mistake}.")
    else:
        ours = [targets] if isinstance(targets, str) else source.check(key, targets, ending)
        source.set(to, "adapter.targets", ours, key, targets)


def _set_dataset(source: Source, to: Conversion) -> None:
    key = "data.init_args.dataset_path"
    value = source.values.get(key)
    several = value if isinstance(value, list) else [value] if value else []
    paths = [each for each in several if isinstance(each, str)]
    for each in several:
        if not isinstance(each, str):
            to.missing(key, each, "Data sets of a hub are not fetched: download it as a folder.")
    if paths[1:]:
        to.set("dataset.folders", [{"path": each} for each in paths[1:]], key, paths[1:])
    if paths and paths[0].endswith(".csv"):
        set_list_of_images(source, to, key, paths[0])
    elif paths:
        to.set("dataset.path", paths[0], key, paths[0])
        to.set("dataset.layout", "paired", key, paths[0])
    key = "data.init_args.processor.init_args.multi_resolutions"
    if source.has(key):
        set_sizes(source, to, key, sizes=source.read(key, _all_sides), near=ONE_SIZE)


def _all_sides(value: Any) -> list[int]:
    if isinstance(value, Mapping):
        value = value.get("target") or []
    if not isinstance(value, list):
        raise UnfitError("a list of numbers of pixels")
    return [side_of(pixels(each), 1) for each in value]


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
