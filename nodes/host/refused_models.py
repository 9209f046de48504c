"""Which MODELs are refused: by class, latents, inputs (distilled ones: `bases/distilled`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...trainer_core.errors import BaseModelError, InputError
from .clip_and_vae_inputs import named_patch, patches_of, require_plain
from .start_frames import start_frames

_IMAGE, _VIDEO = 2, 3
_CHOOSE = "Choose a model that generates images or clips from text."
_INSIDE, _COMPILED = ("transformer_options",), {"torch.compile", "torch_compile_kwargs"}
"""ComfyUI's names of what is inside of a model, and of the two that TorchCompileModel adds."""

_REFUSED_CLASSES: Mapping[str, str] = {
    "TripoSplat": "makes 3D objects",
    "Trellis2": "makes 3D objects",
    "Hunyuan3Dv2": "makes 3D objects",
    "Hunyuan3Dv2_1": "makes 3D objects",
    "StableCascade_B": "is a stage of a cascade",
    "StableCascade_C": "is a stage of a cascade",
    "SD_X4Upscaler": "enlarges images",
    "SeedVR2": "enlarges videos",
    "HunyuanVideo15_SR_Distilled": "enlarges videos",
    "HunyuanImage21Refiner": "refines images of another model",
    "PiD": "decodes latents of another model",
    "RT_DETR_v4": "finds objects",
    "SAM3": "finds objects",
    "SAM31": "finds objects",
    "DepthAnything3": "measures depth",
    "Lotus": "measures depth",
    "WAN21_FlowRVS": "finds objects",
    "Stable_Zero123": "turns views and reads no text",
    "SV3D_u": "turns views and reads no text",
    "SV3D_p": "turns views and reads no text",
    "SVD_img2vid": "moves an image and reads no text",
    "HunyuanVideoI2V": "reads its texts together with the image that a clip begins with",
    "HunyuanVideoSkyreelsI2V": "begins with an image that no node of its own gives it",
    "CosmosI2V": "begins with an image and is sampled as EDM",
    **dict.fromkeys(
        (
            *("WAN21_Camera", "WAN21_HuMo", "WAN21_SCAIL", "WAN21_SCAIL2"),
            *("WAN21_CausalAR", "WAN22_S2V", "WAN22_Animate", "WAN_Animate2", "WAN22_WanDancer"),
            *("SD15_instructpix2pix", "SDXL_instructpix2pix", "FluxInpaint"),
            *("SD21UnclipL", "SD21UnclipH"),
        ),
        "is given more than a text",
    ),
}
"""ComfyUI's classes of models that are not trained, to what they do instead.

Source: ComfyUI 0.33, ``comfy/model_base.py`` and ``comfy/supported_models.py``.
"""


def require_trainable(model: Any) -> None:
    """Refuse a MODEL whose effect is not in its weights, its blocks' patches and its objects.

    Raises:
        InputError: For hooks, a LoRA in bypass mode or another injection, several devices, or what
            a sampler puts around the model: it would show in what is sampled and not in what is
            trained.
    """
    require_plain(model, "MODEL")
    several = getattr(model, "is_multigpu_base_clone", False)
    if several or model.get_additional_models_with_key("multigpu"):
        raise InputError(
            "a MODEL that is spread over several GPUs at the MODEL input",
            "a MODEL on one device",
            "Connect the MODEL from before the node that spreads it.",
        )
    around = [(name, held) for name, held in model.model_options.items() if name not in _INSIDE]
    around += [pair for held in model.wrappers.values() for pair in held.items() if pair[1]]
    # Compiled modules are another form of the same model, and are not used here.
    found = sorted({named_patch(*each) for each in around if each[0] not in _COMPILED})
    if found:
        # A node that only says to predict twice has put something inside, too.
        flags = all(isinstance(held, bool) for _, held in around)
        found += sorted(set(patches_of(model))) if flags else []
        raise InputError(
            f"a MODEL at the MODEL input with something around it: {', '.join(found)}",
            "a MODEL whose own prediction is sampled",
            "Connect the MODEL from before that node; put the node behind Load LoRA for KSampler.",
        )


def require_trainable_kind(patcher: Any) -> None:
    """Refuse one that does not generate images or clips from text; `BaseModelError` says why."""
    model = patcher.model
    config = getattr(model, "model_config", None)
    for each in (type(model).__name__, type(config).__name__):
        if each in _REFUSED_CLASSES:
            raise refused(model, _REFUSED_CLASSES[each])
    if "audio_model" in (getattr(config, "unet_config", None) or {}):
        raise refused(model, "makes sound")
    if not hasattr(model, "diffusion_model"):
        raise refused(model, "has no diffusion model of torch, such as one of TensorRT")
    found = patcher.get_model_object("latent_format")
    if type(found).__name__ == "LatentFormat":
        raise refused(model, "has no latent format that is known")
    if found.latent_dimensions not in {_IMAGE, _VIDEO} or not found.latent_channels:
        raise refused(model, f"has latents of {type(found).__name__}, which are not an image's")
    own = getattr(config, "latent_format", None)
    if own is not None and own.latent_channels != found.latent_channels:
        raise refused(model, f"a node has given the latents of {type(found).__name__}")
    begins = getattr(model, "image_to_video", False)
    if start_frames(model) is None and (model.concat_keys or begins):
        raise refused(model, "is given an image or a mask beside the noise, as for inpainting")


def refused(model: Any, why: str, remedy: str = _CHOOSE) -> BaseModelError:
    """The error for a MODEL that cannot be trained; `why` goes on from "a MODEL of ..., which"."""
    return BaseModelError(
        f"a MODEL of {type(model).__name__}, which {why}",
        "a model that generates images or clips from text, sampled as flow, eps or v",
        remedy,
    )
