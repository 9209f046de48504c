"""Run files of FlyMyAI's trainer, flat YAML; what becomes of its keys: `keys/flymyai.txt`.

Source: FlyMyAI/flymyai-lora-trainer at c0927841, ``train.py``, ``train_4090.py``,
``train_qwen_edit_lora.py``, ``image_datasets/``. A training there is always of a lora on the
attention, with a rank as its alpha, on noise levels that are all alike.
"""

from __future__ import annotations

from ..errors import ConfigError
from .conversion import Conversion, Source
from .key_table_parser import read_tables
from .optimizers import set_optimizer
from .program import ConversionInput, Program, has, set_family
from .shared_settings import set_image_folder

_NAME = "FlyMyAI"
_TABLES = read_tables("flymyai")


def _convert(files: ConversionInput, to: Conversion) -> None:
    source = Source(files.name, files.documents[0].values, _TABLES[""])
    source.apply(to)
    key = "data_config.control_dir"
    set_family(to, files, _NAME, key, word="edit" if source.has(key) else "generate")
    if not source.has("rank"):
        raise ConfigError(
            f"{source.file}: rank is not set, so that no adapter is trained",
            "the rank of the adapter that is trained, such as rank: 16",
            "Give the file of a LoRA training; whole models are not trained here.",
        )
    numbers = {"beta1": "adam_beta1", "beta2": "adam_beta2"}
    eight = source.on("adam8bit")
    # That program hands the others to AdamW in 32 bits alone.
    numbers |= {} if eight else {"weight_decay": "adam_weight_decay", "eps": "adam_epsilon"}
    set_optimizer(source, to, "adam8bit", numbers, word="adam8bit" if eight else "adamw")
    set_image_folder(source, to, "data_config.img_dir", key)


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
