"""Trainings of musubi-tuner: a command line, a TOML of its arguments, a TOML of its datasets.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``,
``training/trainer_base.py``, ``networks/``, and the scripts ``*_train_network.py``.
"""

from __future__ import annotations

from ..families.run_files import words_elsewhere
from .kohya import (
    apply_pairs,
    note_missing_datasets,
    read_parts,
    set_kind,
    set_memory,
    set_optimizer_of,
    set_run,
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
from .kohya_noise import set_bounds, set_flow_noise, set_weighting
from .kohya_prompts import set_previews
from .musubi_datasets import read_datasets
from .program import Given, Program, other_script, script_of, set_family
from .rules import Conversion, Source, flag, text

_NAME = "musubi-tuner"


def _scripts() -> list[str]:
    """The scripts of the architectures that are trained here."""
    return list(dict.fromkeys(f"{word.split()[0]}_{TRAIN}" for word in words_elsewhere(_NAME)))


def _convert(given: Given, to: Conversion) -> None:
    for document in given.documents:
        words = document.values.get("command", ())
        if document.format == "command" and script_of(words).lower() not in _scripts():
            raise other_script(document.name, words, _scripts())
    arguments, datasets = read_parts(given, to, _has_datasets)
    source = Source(given.name, arguments, MUSUBI["arguments"])
    if arguments:
        source.apply(to)
        _family(given, source, to)
        _adapter(source, to)
        set_optimizer_of(source, to)
        set_flow_noise(source, to)
        set_weighting(source, to)
        set_bounds(source, to, cut=source.values.get("timestep_sampling") == "uniform")
        set_memory(source, to)
        set_run(source, to)
        set_previews(given, source, to)
    elif given.family:
        to.say("family", given.family, "family", given.family)
    else:
        to.lack("dit", "", "A file of datasets alone names no model: set family and base.path.")
    if datasets is not None:
        read_datasets(*datasets, to)
    else:
        note_missing_datasets(source, to)


def _family(given: Given, source: Source, to: Conversion) -> None:
    script = source.read(SCRIPT, text, "")
    version = source.read("model_version", text, "").lower()
    for key, name in (("edit_plus", "edit-2509"), ("edit", "edit")):
        if source.read(key, flag, False) and not version:
            version = name
    word = f"{script} {version}".strip() if script else ""
    key = SCRIPT if script or not version else "model_version"
    set_family(to, given, _NAME, key, word)


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
_OF_DATASETS = ("image_directory", "image_jsonl_file", "video_directory", "video_jsonl_file")


def _has_datasets(values: Values) -> bool:
    return lists_datasets(values, *_OF_DATASETS)


def _is_training(values: Values) -> bool:
    if is_of_sd_scripts(values):
        return False
    if _has_datasets(values):
        return True
    if script := script_word(values):
        return TRAIN in script
    return len(_TELLING & without_sections(values).keys()) >= 2


PROGRAM = Program(
    name=_NAME,
    version="30c658c4",
    tables=MUSUBI,
    marks={"arguments of a training, or datasets": _is_training},
    convert=_convert,
    beside=_is_training,
    scripts=_scripts,
)
