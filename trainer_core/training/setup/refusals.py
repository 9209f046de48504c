"""What a run is refused for before weights are loaded, by `train` and ``doctor`` alike."""

from __future__ import annotations

from ...config import MemorySection, RunConfig
from ...config.base_path import names_hub
from ...config.defaults import with_length
from ...device import resolve_device
from ...errors import ConfigError
from ...families.family import NAME_THE_OTHER, Family
from ...families.graph_model_denoiser import OF_FILES
from ...families.trainable_text import with_text
from ...inference.preview_prompts import check_frames
from ...inference.second_model import locate_second
from ...offload.block_selection import checkpointed_block_numbers, swapped_blocks
from ...offload.empty_base import empty_base
from ...types import AdapterState
from ...weights.base_location import BaseLocation
from ..checkpoints.base_adapter_marks import base_adapter_marks
from ..checkpoints.settings_changes import CONTENTS, compared_settings
from ..observer import SilentObserver
from ..optimizers import require_optimizer
from ..prepare.attach_adapter import attach_empty
from ..step.make_loss import require_weighting
from ..step.processes import Processes, Shares
from ..step.sharding import check_settings
from ..step.token_routing import require_routable, routed_blocks
from .starting_point import Start, matching_start, start_identity


def require_possible(config: RunConfig, family: Family, processes: Processes) -> None:
    """Refuse settings that no dataset and no base would make possible.

    Raises:
        ConfigError: When two of them, or one and the family, exclude each other, when a step
            cannot be dealt out among the processes, or the device of the encoders is not there.
    """
    family = family.of_base(config.base)
    Shares(config.training, processes.index, processes.count)
    if processes.sharded:
        check_settings(config)
    require_optimizer(config.training.optimizer.name)
    family.with_noise(config)
    wanted = config.preview.every > 0 or config.base.other_expert
    second = family.second_of(config.base) if wanted else None
    if config.preview.every > 0 and second is None:
        remedy = f"Set preview.every to 0. {NAME_THE_OTHER}"
        family.require_sampling(config.base, "previews are wanted", remedy)
    elif config.preview.every > 0 and not names_hub(config.base.path):
        locate_second(config.base, family)
    if config.preview.every > 0:
        check_frames(config.preview, family)
    kept = config.dataset.preservation
    if config.dataset.slider.is_on or kept.holds("trajectory", "class"):
        remedy = "Set dataset.preservation.kind to blank, or share to 0."
        if config.dataset.slider.is_on:
            remedy = "Train a slider on a model of all noise levels."
        family.require_sampling(config.base, "the run is trained on images of the base", remedy)
    always_begins = family.starts is not None and family.starts.always
    if always_begins and kept.holds("trajectory", "class"):
        raise ConfigError(
            f"dataset.preservation.kind is {kept.kind} and share is {kept.share:g}, and "
            f"{config.base.path} makes clips that begin with an image",
            "a base that generates from a text alone",
            "Set dataset.preservation.kind to output or blank, or share to 0.",
        )
    require_weighting(config.training.loss, family.prediction.parameterization)
    require_routable(family, config.training.routing)
    if family.lent is not None:
        require_hosts_way(config, processes)
    elif config.memory.encoder_device:
        resolve_device(config.memory.encoder_device, "memory.encoder_device")


def require_resumable(
    config: RunConfig, family: Family, precision: str, start: Start, processes: Processes
) -> None:
    """Refuse to resume with settings that the run of the checkpoint may not change.

    The content of base and dataset is taken for the checkpoint's: it is compared when it is read.

    Raises:
        InputError: When ``resume`` names a checkpoint that the settings do not belong to.
    """
    known = start.checkpoint
    if known is None or config.resume == "auto":
        return
    if config.training.steps is None:
        config = with_length(config, known.step)
    config = family.with_noise(config)
    initial, marks = start_identity(config, known), base_adapter_marks(config.base)
    settings = compared_settings(
        with_text(config), precision, "", dataset="", start=initial, adapters=marks
    )
    settings |= {path: known.settings.get(path) for path in CONTENTS}
    start, config = matching_start(
        start,
        settings,
        config,
        family=family,
        precision=precision,
        processes=processes,
        observer=SilentObserver(),
    )
    start.fitted(settings, config, family, processes=processes, observer=SilentObserver())


def require_trainable(
    config: RunConfig, family: Family, location: BaseLocation, start: AdapterState | None
) -> None:
    """Refuse an adapter that the base cannot have, before the dataset is encoded for it.

    A base that the caller has in memory is not looked at: its adapter is attached at once.

    Args:
        start: The adapter that the run starts from, where it has no checkpoint.

    Raises:
        InputError: As `attach_empty`, and when it has fewer blocks than the settings say.
    """
    if family.lent is not None:
        return
    base, memory = empty_base(location, family), config.memory
    swapped_blocks(base.transformer, family.layers.repeated_blocks, memory)
    checkpointed_block_numbers(memory, base.blocks)
    routed_blocks(base.transformer, family, config.training.routing)
    attach_empty(config, base, start)


def require_hosts_way(config: RunConfig, processes: Processes) -> None:
    """Refuse settings that only a base has which the run loads by itself.

    Raises:
        ConfigError: When the weights are to be kept otherwise than the host keeps them, the base is
            to have adapters of its own, or several processes share the run.
    """
    fields = MemorySection.model_fields
    for name in OF_FILES:
        value = getattr(config.memory, name)
        if value not in {fields[name].default, 0}:
            raise _refused(f"memory.{name} is {value}", f"Leave memory.{name} out.")
    if config.memory.plan not in {"auto", "off"}:
        raise _refused(f"memory.plan is {config.memory.plan}", "Leave memory.plan out.")
    if config.base.adapters:
        raise _refused(
            "base.adapters names an adapter",
            "Put it on the model in the graph, with Load LoRA before Base From Model.",
        )
    if processes.count > 1:
        raise _refused(f"{processes.count} processes", "Train in one process.")


def _refused(found: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"{found}, and the base is a model of the graph",
        "a model that stays as ComfyUI has loaded it",
        f"{remedy} Or name the model's file in Load Training Base.",
    )
