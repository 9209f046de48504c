"""What KSampler is given of a clip's first and last frame, by ComfyUI's class of a model.

Each class has a node of its own in ComfyUI, and one function here that makes the same entries: the
latents of the frames and a mask, put into the conditioning or laid over the noise.

Source: ComfyUI 0.33, ``comfy_extras`` ``nodes_wan.py``, ``nodes_hunyuan.py``,
``nodes_kandinsky5.py``, ``nodes_lt.py`` and ``nodes_cosmos.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import BaseModelError
from ...trainer_core.types import ENDS, START, StartFrames
from . import comfy_host
from .clip_and_vae_inputs import Vae, require, weights_fingerprint
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ...trainer_core.types import Conditioning

_GREY = 0.5
"""What stands in the frames that are not given: ``nodes_wan.py``."""

_PADDED = 9
"""Frames of such a clip, at the most."""

_FRAMES, _VISION = "frames", "vision"
_VISION_REMEDY = "Connect Load CLIP Vision to clip_vision of Base From Model."


@dataclass(frozen=True)
class EndpointInputs:
    """What KSampler is given.

    Attributes:
        entries: Of the conditioning, positive and negative.
        samples: `[1, C, f, h, w]` of the VAE, with the clean latents of the frames; None where all
            latents are noise.
        noise_mask: 1 where the latents are noise, 0 where they are clean, to be spread over
            ``samples``.
        steered: Latents of the first frame for a network that reads them beside a control clip.
        in_network: Whether the network itself takes the clean latents from ``entries``; else the
            sampler lays them over the noise, and hands the mask on.
    """

    entries: dict[str, Any] = field(default_factory=dict)
    samples: Tensor | None = None
    noise_mask: Tensor | None = None
    steered: Tensor | None = None
    in_network: bool = False


@dataclass(frozen=True)
class EndpointRule:
    """How one class takes the frames.

    Attributes:
        encode: From the VAE, the first frame and the last one or None, each `[1, H, W, 3]` in [0,
            1], and the number of frames to latents of the VAE `[1, C, f, h, w]`.
        inputs: From these latents, the shape of the noise, and whether the last frame is among
            them, to what KSampler is given.
        end: Whether the last frame can be given as well.
        clean: Whether the latents of the first frame are taken as they are, and not predicted.
        always: Whether a model of the class begins with a frame in any case.
        reads: Name of the network's part that reads the frames as a vision model sees them.
        read_part: What it reads of a vision model's output.
    """

    encode: Callable[[Vae, Tensor, Tensor | None, int], Tensor]
    inputs: Callable[[Tensor, torch.Size, bool], EndpointInputs]
    end: bool = False
    clean: bool = False
    always: bool = False
    reads: str = ""
    read_part: str = ""


def endpoint_rule(model: Any) -> EndpointRule | None:
    """How a ``BaseModel`` takes the first frame of a clip; None where it cannot."""
    config = type(getattr(model, "model_config", None)).__name__
    rule = _RULES.get(config) or _RULES.get(type(model).__name__)
    # Wan 2.1 and Cosmos-Predict2 for texts are of the class of their siblings that begin with one.
    for_texts = rule is not None and rule.always and not getattr(model, "image_to_video", False)
    return None if for_texts else rule


def start_frames(model: Any) -> StartFrames | None:
    """What a dataset may give a model of its clips."""
    rule = endpoint_rule(model)
    return None if rule is None else StartFrames(always=rule.always, end=rule.end)


@dataclass(frozen=True)
class EndpointEncoder:
    """Encodes the frames that a model is given of a clip.

    Attributes:
        model: ComfyUI's ``BaseModel``, which takes frames.
        vision: The CLIP_VISION input's value; None where nothing is connected.
    """

    model: Any
    vision: Any = None

    @property
    def identity(self) -> str:
        """Names the vision model, for the cache's keys."""
        return f"vision {weights_fingerprint(self.vision.model, self.vision.patcher)}"

    def __call__(
        self, vae: Vae, first: Tensor, last: Tensor | None, count: int
    ) -> dict[str, Tensor]:
        """Encode the first frame of a clip of `count` frames, `[3, H, W]`, uint8; maybe the last.

        Latents of the VAE `[C, f, h, w]` as ``frames``; ``vision`` `[L, D]` where the model reads
        it; and, where latents are not predicted, ``clean`` `[f]`, 1 for each frame of them that is
        so.

        Raises:
            InputError: When it reads the frames as a vision model sees them, and there is none.
        """
        import torch

        rule = endpoint_rule(self.model)
        assert rule is not None
        shown = [each for each in (first, last) if each is not None]
        frames = [each.movedim(0, -1)[None].float() / 255 for each in shown]
        latents = rule.encode(vae, frames[0], None if last is None else frames[1], count)
        found = {_FRAMES: ordinary_copy(latents[0])}
        if rule.reads and getattr(self.model.diffusion_model, rule.reads, None) is not None:
            vision = require(self.vision, "CLIP_VISION", "to encode start frames", _VISION_REMEDY)
            # As it was trained: the whole frame in a square.
            views = [vision.encode_image(each, crop=False)[rule.read_part] for each in frames]
            found[_VISION] = ordinary_copy(torch.cat(views, dim=-2)[0])
        if rule.clean:
            every = int(self.model.latent_format.temporal_downscale_ratio)
            found["clean"] = torch.zeros((count - 1) // every + 1)
            found["clean"][: latents.shape[2]] = 1.0
        return found


def endpoint_inputs(model: Any, text: Conditioning, shape: torch.Size) -> EndpointInputs:
    """What KSampler is given of the frames that are stored beside a text, for noise of a shape.

    They are as `EndpointEncoder` gave them, under `START` or `ENDS`; nothing where none are given.
    The shape is `[1, C, f, h, w]`.

    Raises:
        BaseModelError: When they were encoded for a clip of another length or size.
    """
    kind = next((each for each in (ENDS, START) if f"{each}.{_FRAMES}" in text), "")
    rule = endpoint_rule(model)
    if not kind or rule is None:
        return EndpointInputs()
    latents = text[f"{kind}.{_FRAMES}"][None].clone()
    fits = latents.shape[2] in {1, shape[2]}
    if not fits or latents.shape[-2:] != shape[-2:]:
        raise BaseModelError(
            f"a start frame that was encoded to latents of {list(latents.shape[2:])}, and noise of "
            f"{list(shape[2:])}",
            "frames, height and width of the clip that begins with it",
            "Encode again with the size and the frames that are generated (Cache Embeddings).",
        )
    inputs = rule.inputs(latents, shape, kind == ENDS)
    vision = text.get(f"{kind}.{_VISION}")
    if vision is not None:
        output = comfy_host.comfyui_module("comfy.clip_vision").Output()
        output[rule.read_part] = vision[None]
        inputs.entries["clip_vision_output"] = output
    return inputs


def _grey_between(vae: Vae, first: Tensor, last: Tensor | None, count: int) -> Tensor:
    image = first.new_full((count, *first.shape[1:]), _GREY)
    image[:1] = first
    if last is not None:
        image[-1:] = last
    return vae.encode(image)


def _alone(vae: Vae, first: Tensor, last: Tensor | None, count: int) -> Tensor:
    del last, count
    return vae.encode(first)


def _padded(vae: Vae, first: Tensor, last: Tensor | None, count: int) -> Tensor:
    """The first frame of the latents of a clip that goes on in grey: ``nodes_cosmos.py``."""
    return _grey_between(vae, first, None, min(count, _PADDED))[:, :, :1]


def _mask(latents: Tensor, shape: torch.Size, *sides: int) -> Tensor:
    """`[1, 1, f, ...]`: 0 in the first frame of the latents and 1 in the others."""
    mask = latents.new_ones((1, 1, shape[2], *sides))
    mask[:, :, :1] = 0.0
    return mask


def _behind_zeros(latents: Tensor, shape: torch.Size) -> Tensor:
    whole = latents.new_zeros((1, latents.shape[1], *shape[2:]))
    whole[:, :, : latents.shape[2]] = latents
    return whole


def _wan_channels(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``WanImageToVideo``, and with the last frame ``WanFirstLastFrameToVideo``."""
    if not ends:
        mask = _mask(latents, shape, *shape[-2:])
    else:
        # The first frame stands for four, as in its latents; the last one for itself.
        each = latents.new_ones((1, shape[2], 4, *shape[-2:]))
        each[:, 0] = 0.0
        each[:, -1, -1] = 0.0
        mask = each.transpose(1, 2)
    return EndpointInputs({"concat_latent_image": latents, "concat_mask": mask})


def _hunyuan_channels(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``HunyuanVideo15ImageToVideo``."""
    del ends
    mask = _mask(latents, shape, *shape[-2:])
    whole = _behind_zeros(latents, shape)
    return EndpointInputs({"concat_latent_image": whole, "concat_mask": mask})


def _replaced(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``Kandinsky5ImageToVideo``; its second output replaces what was sampled of the frame."""
    del ends
    mask = _mask(latents, shape, *shape[-2:])
    entries = {"time_dim_replace": latents, "concat_mask": mask}
    return EndpointInputs(entries, _behind_zeros(latents, shape), mask, in_network=True)


def _wan22_latent(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``Wan22ImageToVideoLatent``."""
    del ends
    return _over_zeros("Wan22", latents, shape)


def _cosmos_latent(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``CosmosPredict2ImageToVideoLatent``."""
    del ends
    return _over_zeros("Wan21", latents, shape)


def _over_zeros(format: str, latents: Tensor, shape: torch.Size) -> EndpointInputs:
    """Over latents that are zeros for the network."""
    mask = _mask(latents, shape, *shape[-2:])
    whole = _behind_zeros(latents, shape)
    zeros = getattr(comfy_host.comfyui_module("comfy.latent_formats"), format)().process_out(whole)
    return EndpointInputs({}, zeros * mask + whole * (1.0 - mask), mask)


def _ltx_latent(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``LTXVImgToVideo`` at strength 1."""
    del ends
    return EndpointInputs({}, _behind_zeros(latents, shape), _mask(latents, shape, 1, 1))


def _steered(latents: Tensor, shape: torch.Size, ends: bool) -> EndpointInputs:
    """``WanFunControlToVideo``, of which `control_clips` makes the entries."""
    del shape, ends
    return EndpointInputs(steered=latents)


_RULES: Mapping[str, EndpointRule] = {
    "WAN21_FunControl2V": EndpointRule(
        _alone, _steered, reads="img_emb", read_part="penultimate_hidden_states"
    ),
    "WAN21": EndpointRule(
        _grey_between,
        _wan_channels,
        end=True,
        always=True,
        reads="img_emb",
        read_part="penultimate_hidden_states",
    ),
    "WAN22": EndpointRule(_alone, _wan22_latent, clean=True),
    "CosmosPredict2": EndpointRule(_padded, _cosmos_latent, clean=True, always=True),
    **dict.fromkeys(("LTXV", "LTXAV"), EndpointRule(_alone, _ltx_latent, clean=True)),
    "HunyuanVideo15": EndpointRule(
        _alone, _hunyuan_channels, reads="vision_in", read_part="last_hidden_state"
    ),
    "Kandinsky5": EndpointRule(_alone, _replaced, clean=True),
}
"""ComfyUI's configurations and classes of models to how they take the first frame of a clip."""
