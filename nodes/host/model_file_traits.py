"""What a model file says of the MODEL that ComfyUI would make of it, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from ...trainer_core.errors import InputError
from ...trainer_core.weights.header import read_header
from . import comfy_host
from .graph_model import traits_of

_PARAMETERIZATIONS = {
    "EPS": "eps",
    **dict.fromkeys(("V_PREDICTION", "V_PREDICTION_CONTINUOUS", "V_PREDICTION_DDPM"), "v"),
    **dict.fromkeys(("EDM", "V_PREDICTION_EDM"), "edm"),
    "STABLE_CASCADE": "eps",
}
"""ComfyUI's types of models whose noise levels are a schedule's; all others are flows."""


def traits_of_file(path: Path) -> frozenset[str]:
    """The same as `graph_model.GraphModel.traits`, from the header of a file alone.

    Raises:
        InputError: When ComfyUI knows no model with such tensors.
    """
    import torch

    detection = comfy_host.comfyui_module("comfy.model_detection")
    header, _ = read_header(path)
    tensors = {name: torch.empty(info.shape, device="meta") for name, info in header.items()}
    prefix = detection.unet_prefix_from_state_dict(tensors)
    config = detection.model_config_from_unet(tensors, prefix)
    if config is None:
        raise InputError(
            f"{path.name} holds no model that ComfyUI knows",
            "a file with a diffusion model",
            "Choose another file in the loader.",
        )
    try:
        kind = config.model_type(tensors, prefix).name
    except (RuntimeError, NotImplementedError):
        kind = "V_PREDICTION"  # SD2 is told from its eps by values.
    return traits_of(
        config,
        _PARAMETERIZATIONS.get(kind, "flow"),
        guided=bool(config.unet_config.get("guidance_embed")),
    )
