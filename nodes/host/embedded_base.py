"""The embedded base as ComfyUI's own MODEL, VAE and CONDITIONING.

ComfyUI's loaders read some sizes from a file and take the rest for granted, as they are in what was
published. So its classes are built here at the embedded base's sizes; everything else is as its
loaders do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...trainer_core.families.registry import embedded_family
from . import comfy_host

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.families.graph_spec import ComfyuiClasses
    from ...trainer_core.types import Conditioning

_NO_SHIFT = 0.0
"""What ComfyUI calls shift is the logarithm of it here."""


def embedded_model(disable_dynamic: bool = False) -> Any:
    """ComfyUI's MODEL; `disable_dynamic` as its loaders have it, which it calls for a deep copy."""
    import torch

    spec, folder = _base()
    patchers, management = comfy_host.patcher_modules()
    config = _config(folder / "transformer")
    kind = comfy_host.comfyui_class(spec.model)
    settings = kind(kind.unet_config | {name: config[name] for name in spec.settings})
    settings.latent_format = _latent_format()
    settings.sampling_settings["shift"] = _NO_SHIFT
    settings.set_inference_dtype(torch.float32, None)
    model = settings.get_model({}, "")
    make = patchers.ModelPatcher if disable_dynamic else patchers.CoreModelPatcher
    load, offload = management.get_torch_device(), management.unet_offload_device()
    patcher = make(model, load_device=load, offload_device=offload)
    model.to(offload)
    weights = _weights(folder / "transformer")
    model.load_model_weights(weights, "", assign=patcher.is_dynamic())
    patcher.cached_patcher_init = (embedded_model, ())
    return patcher


def embedded_vae() -> Any:
    """ComfyUI's VAE."""
    import torch

    spec, folder = _base()
    config = _config(folder / "vae")
    kind = comfy_host.comfyui_class(spec.vae)
    # One of published sizes, for which ComfyUI sets all that it needs to know besides the network.
    published = kind(**spec.vae_published(config)).state_dict()
    vae = comfy_host.comfyui_class("comfy.sd.VAE")(sd=published, dtype=torch.float32)
    model = kind(**spec.vae_settings(config)).eval().to(torch.float32)
    old = vae.patcher
    patcher = type(old)(model, load_device=old.load_device, offload_device=old.offload_device)
    weights = {spec.vae_name(name, config): each for name, each in _weights(folder / "vae").items()}
    model.load_state_dict(weights, assign=patcher.is_dynamic())
    vae.first_stage_model, vae.patcher = model, patcher
    vae.latent_channels, vae.size = config["z_dim"], None
    vae.model_size()
    patcher.cached_patcher_init = (_vae_patcher, ())
    return vae


def conditioning(prompt: Conditioning, latents: Sequence[Tensor]) -> list[Any]:
    """ComfyUI's CONDITIONING of ``text_embeddings`` `[L, D]` and latents of control images.

    The latents are normalised, `[C, h, w]`.
    """
    raw = _latent_format().process_out
    # As ComfyUI's nodes for editing hand them on: raw, and one frame of a video.
    references = [raw(each[None, :, None]) for each in latents]
    extra = {"reference_latents": references} if references else {}
    return [[prompt["text_embeddings"][None], extra]]


def _vae_patcher(disable_dynamic: bool = False) -> Any:
    return embedded_vae().patcher


def _base() -> tuple[ComfyuiClasses, Path]:
    family = embedded_family()
    assert family.embedded is not None
    assert family.graph is not None
    assert family.graph.model is not None
    return family.graph.model, family.embedded


def _latent_format() -> Any:
    import torch

    spec, folder = _base()
    config = _config(folder / "vae")
    found = comfy_host.comfyui_class(spec.model).latent_format()
    found.latent_channels = config["z_dim"]
    found.latents_mean, found.latents_std = (
        torch.tensor(config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std")
    )
    # The colours of the published latents, and its small decoder, are of no use here.
    found.latent_rgb_factors = found.taesd_decoder_name = None
    return found


def _config(folder: Path) -> dict[str, Any]:
    from ...trainer_core.weights.diffusers_folder import read_json

    return read_json(folder / "config.json")


def _weights(folder: Path) -> dict[str, Tensor]:
    import torch

    from ...trainer_core.tensors.safetensors_reader import open_tensors

    with open_tensors(folder / "diffusion_pytorch_model.safetensors") as file:
        return {name: tensor.to(torch.float32) for name, tensor in file.read_all().items()}
