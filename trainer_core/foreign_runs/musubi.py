"""Command line and TOML of musubi-tuner; what becomes of its keys: `keys/musubi.txt`.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``,
``training/trainer_base.py``, ``networks/``, ``dataset/config_utils.py``,
``dataset/image_video_dataset.py``, ``*_train_network.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..families.run_files import words_elsewhere
from .conversion import Conversion, Source, Table
from .dataset_folders import Folder, set_folders
from .key_table_parser import read_tables
from .kohya import (
    BOTH,
    LISTED,
    SCRIPT,
    TRAIN,
    lists_datasets,
    read_parts,
    script_word,
    set_adapter,
    set_samples,
    set_steps,
    without_sections,
)
from .program import ConversionInput, Program, set_family, trains_clips
from .sd_scripts import is_of_sd_scripts
from .shared_settings import say_family_of_datasets, set_image_folder, set_list_of_images
from .value_readers import mapping, mappings, numbers, text

_NAME = "musubi-tuner"
_TABLES = read_tables("musubi")
_TABLES[""] = BOTH + _TABLES[""]
_TABLES["datasets"] = Table([*_TABLES["general"].rows, *_TABLES["datasets"].rows])
_OF_VIDEOS = [f"{word}_{TRAIN}" for word in ("hv", "hv_1_5", "kandinsky5", "wan")]
"""The scripts of models that train here as a MODEL of the graph alone."""
_GUIDANCE = {"flux_kontext": 2.5, "flux_2": 4.0, "zimage": 4.0}
"""Scripts to the guidance of a preview that says nothing of it and has no negative prompt."""
_KINDS = {"lora": "lora", "loha": "loha", "lokr": "lokr"}
_IMAGES, _CLIPS = (
    ("image_directory", "image_jsonl_file"),
    ("video_directory", "video_jsonl_file"),
)
"""Where a dataset of either kind is: a folder, or the file that lists it."""
_TELLING = {
    *("network_dim", "network_module", "dit", "dataset_config", "timestep_sampling"),
    *("network_alpha", "network_args", "discrete_flow_shift"),
}


def _scripts() -> list[str]:
    """The scripts of the architectures that are trained here."""
    words = words_elsewhere(_NAME)
    return list(dict.fromkeys(f"{word.split()[0]}_{TRAIN}" for word in words))


def _has_datasets(values: Mapping[str, Any]) -> bool:
    return lists_datasets(values, *_IMAGES, *_CLIPS)


def _is_training(values: Mapping[str, Any]) -> bool:
    if is_of_sd_scripts(values):
        return False
    if _has_datasets(values):
        return True
    if script := script_word(values):
        return TRAIN in script
    return len(_TELLING & without_sections(values).keys()) >= 2


def _convert(files: ConversionInput, to: Conversion) -> None:
    scripts = _scripts() + (_OF_VIDEOS if files.in_graph else [])
    script, arguments, datasets = read_parts(files, to, scripts, _has_datasets)
    if script or arguments:
        cut = arguments.get("timestep_sampling") == "uniform"
        cut = cut or str(arguments.get("preserve_distribution_shape")).lower() == "true"
        facts = {"@weighs": True, "@cut": cut}
        source = Source(files.name, arguments, _TABLES[""], facts=facts, listed=LISTED)
        source.apply(to)
        _set_base(files, source, script, to)
        set_adapter(source, to, _KINDS)
        set_steps(source, to)
        set_samples(files, source, to, size=256, steps=20, guidance=_GUIDANCE.get(script, 1.0))
    else:
        say_family_of_datasets(files, to, "dit")
    if datasets is not None:
        _read_datasets(*datasets, to, clips=trains_clips(files, to))


def _set_base(files: ConversionInput, source: Source, script: str, to: Conversion) -> None:
    version = source.read("model_version", text, "").lower()
    for key, name in (("edit_plus", "edit-2509"), ("edit", "edit")):
        if source.on(key) and not version:
            version = name
    word = f"{script} {version}".strip() if script else ""
    key = SCRIPT if script or not version else "model_version"
    set_family(to, files, _NAME, key, word=word)


def _read_datasets(name: str, values: Mapping[str, Any], to: Conversion, *, clips: bool) -> None:
    """Turn datasets into folders."""
    top = Source(name, values, _TABLES["file"])
    top.note_unknown_keys(to)
    general = top.read("general", mapping, {})
    Source(name, general, _TABLES["general"], "general.").note_unknown_keys(to)
    shared = {key: value for key, value in general.items() if _TABLES["general"].row(key)}
    folders: list[Folder] = []
    for place, each in enumerate(top.read("datasets", mappings, [])):
        # What names images is a dataset of images there.
        moving = clips and bool(each.keys() & {*_CLIPS}) and not each.keys() & {*_IMAGES}
        facts = {"@clips": moving}
        prefix = f"datasets[{place}]."
        source = Source(name, {**shared, **each}, _TABLES["datasets"], prefix, facts=facts)
        folders.append(_folder(source, to, clips=moving))
    set_folders(to, folders)


def _folder(source: Source, whole_run: Conversion, *, clips: bool) -> Folder:
    to = Conversion()
    source.apply(to)
    if "cache.dir" in to.values:
        whole_run.values.setdefault("cache.dir", to.values.pop("cache.dir"))
    place = source.prefix.rstrip(".")
    folder, table = _CLIPS if clips else _IMAGES
    if clips and source.word("frame_extraction") != "full" and not _lengths(source):
        to.leave_out({*to.values}, "Single frames of clips are trained here as images.")
        why = "Single frames of clips are trained here as images: save them as such."
        to.missing(source.name("target_frames"), source.values.get("target_frames", [1]), why)
        return Folder(to, key=place)
    set_image_folder(source, to, folder, "control_directory")
    if clips and source.has("control_directory"):
        near = "A clip is as long as the shorter of both; numbered images are not read as a clip."
        key = "control_directory"
        to.applied("dataset.control_folders", source.name(key), source.values[key], near)
    if source.has(table) and not source.has(folder):
        set_list_of_images(source, to, table, source.read(table, text))
    return Folder(to, key=place)


def _lengths(source: Source) -> list[float]:
    """The lengths of clips, in frames; one frame is an image."""
    return [each for each in source.read("target_frames", numbers, []) if each >= 2]


PROGRAM = Program(
    name=_NAME,
    version="30c658c4",
    tables=_TABLES,
    marks={"arguments of a training, or datasets": _is_training},
    convert=_convert,
    beside=_is_training,
    scripts=_scripts,
)
