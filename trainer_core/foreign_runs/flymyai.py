"""Run files of FlyMyAI's trainer: flat YAML.

Source: FlyMyAI/flymyai-lora-trainer at c0927841, ``train.py``, ``train_4090.py``,
``train_qwen_edit_lora.py``, ``image_datasets/``. A training there is always of a lora on the
attention, with a rank as its alpha, on noise levels that are all alike.
"""

from __future__ import annotations

from ..errors import ConfigError
from .optimizers import set_optimizer
from .program import Given, Program, has, set_family
from .rules import Conversion, Source, flag, number, text, whole
from .table_text import read_tables
from .vocabulary import (
    ending,
    set_image_folder,
    set_reading,
    set_schedule,
    set_trackers,
    set_warmup,
)

_NAME = "FlyMyAI"
_TABLES = read_tables("flymyai", extension=lambda value: f".{text(value)}")


def _convert(files: Given, to: Conversion) -> None:
    source = Source(files.name, files.documents[0].values, _TABLES[""])
    source.apply(to)
    edits = source.has("data_config.control_dir")
    set_family(to, files, _NAME, "data_config.control_dir", "edit" if edits else "generate")
    _adapter(source, to)
    _optimizer(source, to)
    _dataset(source, to)
    set_trackers(source, "report_to", to)
    to.say(
        "output.layouts", ["comfyui", "diffusers"], "save_lora_weights", "diffusers", stated=False
    )


def _adapter(source: Source, to: Conversion) -> None:
    rank = source.read("rank", whole)
    if rank is None:
        raise ConfigError(
            f"{source.file}: rank is not set, so that no adapter is trained",
            "the rank of the adapter that is trained, such as rank: 16",
            "Give the file of a LoRA training; whole models are not trained here.",
        )
    fixed = "train.py"
    to.say("adapter.kind", "lora", fixed, "lora", stated=False)
    to.say("adapter.rank", rank, "rank", rank)
    to.say("adapter.alpha", float(rank), "rank", rank)
    to.say("adapter.init", "gaussian", fixed, "gaussian", stated=False)
    targets = ending(["to_k", "to_q", "to_v", "to_out.0"])
    to.say("adapter.targets", targets, fixed, targets, stated=False)
    to.say("training.sigma.density", "uniform", fixed, "uniform", stated=False)


def _optimizer(source: Source, to: Conversion) -> None:
    names = {"beta1": "adam_beta1", "beta2": "adam_beta2"}
    rest = {"weight_decay": "adam_weight_decay", "eps": "adam_epsilon"}
    if eight := source.read("adam8bit", flag, False):
        source.off(to, *rest.values(), why="That program hands it to AdamW in 32 bits alone.")
    else:
        names |= rest
    numbers = {at: (key, source.read(key, number)) for at, key in names.items() if source.has(key)}
    kind = "adam8bit" if eight else "adamw"
    set_optimizer(to, ("adam8bit", kind), numbers, named=source.has("adam8bit"))
    name = source.read("lr_scheduler", text, "constant")
    set_schedule(to, ("lr_scheduler", name), named=source.has("lr_scheduler"))
    set_warmup(source, to, "lr_warmup_steps", name)


def _dataset(source: Source, to: Conversion) -> None:
    to.say("dataset.bucketing", "longest_side", "image_datasets", "longest_side", stated=False)
    to.say("dataset.upscale", True, "image_datasets", True, stated=False)
    path = source.read("data_config.img_dir", text, "")
    control = source.read("data_config.control_dir", text, "")
    controls = [("data_config.control_dir", control)] if control else []
    set_image_folder(to, ("data_config.img_dir", path), controls)
    set_reading(to, "data_config.img_dir", missing_caption="skip")


PROGRAM = Program(
    name=_NAME,
    version="c0927841",
    tables=_TABLES,
    marks={
        "data_config.img_dir": has("data_config", "img_dir"),
        "pretrained_model_name_or_path": has("pretrained_model_name_or_path"),
    },
    convert=_convert,
)
