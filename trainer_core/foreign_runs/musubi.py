"""Trainings of musubi-tuner: a command line, a TOML of its arguments, a TOML of its datasets.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``,
``training/trainer_base.py``, ``networks/``, ``dataset/config_utils.py``, ``*_train_network.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..families.run_files import words_elsewhere
from .clips import set_parts, trains_clips
from .folders import Folder, set_folders
from .kohya import (
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
from .kohya_keys import (
    MUSUBI,
    SCRIPT,
    TRAIN,
    Values,
    is_of_sd_scripts,
    lists_datasets,
    script_word,
    without_sections,
)
from .kohya_prompts import set_previews
from .program import Given, Program, set_family
from .rules import Conversion, Source, Together, flag, mapping, mappings, text
from .vocabulary import set_image_folder, set_reading, set_table, sides

_NAME = "musubi-tuner"


_OF_VIDEOS = [f"{word}_{TRAIN}" for word in ("hv", "hv_1_5", "kandinsky5", "wan")]
"""The scripts of models that train here as a MODEL of the graph alone."""


def _scripts() -> list[str]:
    """The scripts of the architectures that are trained here."""
    return list(dict.fromkeys(f"{word.split()[0]}_{TRAIN}" for word in words_elsewhere(_NAME)))


def _convert(files: Given, to: Conversion) -> None:
    scripts = _scripts() + (_OF_VIDEOS if files.in_graph else [])
    arguments, datasets = read_parts(files, to, scripts, _has_datasets)
    source = Source(files.name, arguments, MUSUBI["arguments"])
    if arguments:
        source.apply(to)
        _family(files, source, to)
        _adapter(source, to)
        set_optimizer_of(source, to)
        set_flow_noise(source, to)
        set_weighting(source, to)
        set_bounds(source, to, cut=source.values.get("timestep_sampling") == "uniform")
        set_memory(source, to)
        set_run(source, to)
        guidance = _GUIDANCE.get(source.read(SCRIPT, text, ""), 1.0)
        set_previews(files, source, to, 256, 20, guidance)
    else:
        say_family_of_datasets(files, to, "dit")
    if datasets is not None:
        _read_datasets(*datasets, to, clips=trains_clips(files, to))
    else:
        note_missing_datasets(source, to)


def _family(files: Given, source: Source, to: Conversion) -> None:
    script = source.read(SCRIPT, text, "")
    version = source.read("model_version", text, "").lower()
    for key, name in (("edit_plus", "edit-2509"), ("edit", "edit")):
        if source.read(key, flag, False) and not version:
            version = name
    word = f"{script} {version}".strip() if script else ""
    key = SCRIPT if script or not version else "model_version"
    set_family(to, files, _NAME, key, word)


_GUIDANCE = {"flux_kontext": 2.5, "flux_2": 4.0, "zimage": 4.0}
"""Scripts to the guidance of a preview that says nothing of it and has no negative prompt."""
_KINDS = {"lora": "lora", "loha": "loha", "lokr": "lokr"}


def _adapter(source: Source, to: Conversion) -> None:
    module = source.read("network_module", text, "networks.lora")
    set_kind(source, to, module, _KINDS.get(module.rsplit(".", 1)[-1].split("_")[0]))
    for _ in apply_pairs(source, "network_args", MUSUBI["network_args"], to):
        pass


_TELLING = {
    *("network_dim", "network_module", "dit", "dataset_config", "timestep_sampling"),
    *("network_alpha", "network_args", "discrete_flow_shift"),
}
_IMAGES = ("image_directory", "image_jsonl_file")
_CLIPS = ("video_directory", "video_jsonl_file")
"""Where a dataset of either kind is: a folder, or the file that lists it."""


def _has_datasets(values: Values) -> bool:
    return lists_datasets(values, *_IMAGES, *_CLIPS)


def _is_training(values: Values) -> bool:
    if is_of_sd_scripts(values):
        return False
    if _has_datasets(values):
        return True
    if script := script_word(values):
        return TRAIN in script
    return len(_TELLING & without_sections(values).keys()) >= 2


def _read_datasets(name: str, values: Mapping[str, Any], to: Conversion, *, clips: bool) -> None:
    """Turn datasets into folders.

    Args:
        clips: Whether datasets of clips are read.
    """
    top = Source(name, values, {"general": Together("dataset"), "datasets": Together("dataset")})
    top.tell_unknown(to)
    general = top.read("general", mapping, {})
    outside = Source(name, general, MUSUBI["general"], "general.")
    outside.tell_unknown(to)
    shared = {key: value for key, value in general.items() if key in MUSUBI["general"]}
    folders: list[Folder] = []
    for place, each in enumerate(top.read("datasets", mappings, [])):
        # What names images is a dataset of images there.
        moving = clips and bool(each.keys() & {*_CLIPS}) and not each.keys() & {*_IMAGES}
        table = {**MUSUBI["datasets"], **(MUSUBI["datasets of clips"] if moving else {})}
        source = Source(name, {**shared, **each}, table, f"datasets[{place}].")
        folders.append(_folder(source, to, clips=moving))
    set_folders(to, folders)


def _folder(source: Source, whole_run: Conversion, *, clips: bool) -> Folder:
    to = Conversion()
    source.apply(to)
    if "cache.dir" in to.values:
        whole_run.values.setdefault("cache.dir", to.values.pop("cache.dir"))
    key = source.prefix
    upscale = not source.read("bucket_no_upscale", flag, False)
    source.say(to, "dataset.upscale", upscale, "bucket_no_upscale", not upscale)
    if source.has("control_resolution"):
        side = source.read("control_resolution", sides)
        resolution = source.values["control_resolution"]
        source.say(to, "dataset.control_area", side * side, "control_resolution", resolution)
    folder, table = _CLIPS if clips else _IMAGES
    if clips and not set_parts(source, to):
        return Folder(to, key=key.rstrip("."))
    path = source.read(folder, text, "")
    control = source.read("control_directory", text, "")
    controls = [(f"{key}control_directory", control)] if control else []
    set_image_folder(to, (f"{key}{folder}", path), controls)
    if clips and control:
        near = "A clip is as long as the shorter of both; numbered images are not read as a clip."
        to.tell("dataset.control_folders", f"{key}control_directory", control, near)
    if path:
        set_reading(to, f"{key}{folder}", missing_caption="error" if clips else "skip")
    elif source.has(table):
        set_table(to, f"{key}{table}", source.read(table, text))
    return Folder(to, key=key.rstrip("."))


PROGRAM = Program(
    name=_NAME,
    version="30c658c4",
    tables=MUSUBI,
    marks={"arguments of a training, or datasets": _is_training},
    convert=_convert,
    beside=_is_training,
    scripts=_scripts,
)
