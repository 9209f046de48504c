"""The second of two experts (Wan 2.2) while images are sampled: found, and used at its levels."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..bases.locate import locate_base
from ..config import BaseSection, RunConfig
from ..device import release_memory
from ..errors import BaseModelError
from ..families.family import Family
from ..families.graph_model_denoiser import OtherExpert
from ..offload.empty_base import empty_base
from ..offload.host_weights import MappedMaster
from ..offload.load_base import load_base
from ..offload.machine import Machine
from ..offload.possible_plans import RESERVE
from ..quantization.quantized_linear import set_compute
from ..weights.base_location import BaseLocation
from .sampling_memory import sampling_bytes, sampling_memory


def locate_second(base: BaseSection, family: Family) -> BaseLocation | None:
    """Find the other model of a base; None where it has none, or nothing says where it is.

    Raises:
        InputError: When it is not whole, or not of the family.
    """
    second = family.second_of(base)
    if second is None:
        return None
    try:
        return locate_base(second.base, family, False, needs_encoders=False, to_train=False)
    except BaseModelError as error:
        if not base.other_expert:
            raise
        texts = (error.found, error.expected, error.remedy)
        found, expected, remedy = (each.replace("base.path", "base.other_expert") for each in texts)
        raise BaseModelError(found, expected, remedy) from error


def second_model(
    config: RunConfig,
    family: Family,
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device,
    machine: Machine,
) -> OtherExpert | None:
    """The other model of a base, which is loaded when it samples, and given back behind it.

    It takes the room that is left beside the base; its other blocks are read from its file as they
    are needed, so that RAM holds no second model.

    Returns:
        None where nothing says where it is.

    Raises:
        InputError: As `locate_second`.
    """
    place, second = locate_second(config.base, family), family.second_of(config.base)
    if place is None or second is None:
        return None
    place = replace(place, encoders=location.encoders)

    def open_denoiser(at_end: contextlib.ExitStack) -> nn.Module:
        release_memory(device)
        base, reserve = empty_base(place, family), 0 if device.type == "cpu" else RESERVE
        room = machine.free_memory(device) - reserve - sampling_bytes(config, base, dtype)
        open_blocks = {"blocks_to_swap": None, "plan": "auto"}
        memory = sampling_memory(config.memory.model_copy(update=open_blocks), base, dtype, room)
        placed = load_base(
            memory,
            family,
            place,
            dtype=dtype,
            device=device,
            machine=Machine(),  # that of the run keeps the base that is trained
            at_end=at_end,
            master=MappedMaster(required=False),
        )
        set_compute(placed.transformer, memory.compute)
        return placed.transformer

    def border(sigmas: Tensor) -> Tensor:
        return sigmas[sigmas < second.border].max()

    return OtherExpert(family.prediction.predict, open_denoiser, second.begins, border)
