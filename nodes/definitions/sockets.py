"""The sockets between the pack's nodes."""

from __future__ import annotations

from collections.abc import Mapping

from comfy_api.latest import io

from ..services.choices import (
    AdapterChoice,
    BaseChoice,
    DatasetChoice,
    EncodedCache,
    PreviewChoice,
    RunHandle,
    SettingsChoice,
)

Dataset = io.Custom("ADAPTER_TRAINER_DATASET")
Base = io.Custom("ADAPTER_TRAINER_BASE")
Previews = io.Custom("ADAPTER_TRAINER_PREVIEWS")
Cache = io.Custom("ADAPTER_TRAINER_CACHE")
Adapter = io.Custom("ADAPTER_TRAINER_ADAPTER")
Settings = io.Custom("ADAPTER_TRAINER_SETTINGS")
Run = io.Custom("ADAPTER_TRAINER_RUN")
LoraModel = io.Custom("LORA_MODEL")
LossMap = io.Custom("LOSS_MAP")

CLASSES: Mapping[str, type] = {
    Dataset.io_type: DatasetChoice,
    Base.io_type: BaseChoice,
    Previews.io_type: PreviewChoice,
    Cache.io_type: EncodedCache,
    Adapter.io_type: AdapterChoice,
    Settings.io_type: SettingsChoice,
    Run.io_type: RunHandle,
}
"""Sockets of this pack, to what travels through them."""
