"""The denoiser of FLUX.2 in the trainer's convention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...types import Conditioning
from ..diffusers_parts import computing_dtype, pipeline_time, takes_guidance

_TEXT_LENGTH = 512
"""Text tokens that the denoiser is given at least."""
_REFERENCE = 10
"""Distance from one reference image to the next, and of the first from the target."""


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for FLUX.2.

    Each latent is a token. Those of the reference images follow the target's; the first position
    index tells them apart (0 for the target, 10 for the first reference, 20 for the next).

    Each conditioning has ``text_embeddings`` `[L, D]`.
    """
    dtype, device = computing_dtype(transformer), noisy.device
    images = [noisy, *controls]
    tokens = torch.cat([image.flatten(2).mT for image in images], dim=1).to(dtype)
    text = pad_text([item["text_embeddings"] for item in conditionings]).to(tokens)
    scale = None
    if takes_guidance(transformer):
        scale = torch.full((noisy.shape[0],), guidance, device=device)
    output = transformer(
        hidden_states=tokens,
        timestep=pipeline_time(sigma, dtype),
        guidance=scale,
        encoder_hidden_states=text,
        txt_ids=_positions((1, 1, 1, text.shape[1]), device),
        img_ids=torch.cat(
            [
                _positions((1, *image.shape[-2:], 1), device, _REFERENCE * index)
                for index, image in enumerate(images)
            ]
        ),
        return_dict=False,
    )[0]
    height, width = noisy.shape[-2:]
    return output[:, : height * width].mT.unflatten(2, (height, width)).to(noisy.dtype)


def pad_text(embeddings: Sequence[Tensor]) -> Tensor:
    """Stack texts `[L_i, D]`, with zeros before the shorter ones: `[B, max(512, L), D]`.

    So does ComfyUI's model. Diffusers' pipeline of dev encodes padding instead, and the
    denoiser, which knows no mask, attends to what the text encoder makes of it.

    Source: ComfyUI 0.33, ``comfy/model_base.py`` (``Flux2``).
    """
    length = max(_TEXT_LENGTH, *(len(text) for text in embeddings))
    return torch.stack([pad(text, (0, 0, length - len(text), 0)) for text in embeddings])


def _positions(counts: tuple[int, ...], device: torch.device, first: int = 0) -> Tensor:
    """Places `[S, 4]` of tokens: image, row, column, place in the text; in float32."""
    image, *others = (torch.arange(count, device=device) for count in counts)
    return torch.cartesian_prod(image + first, *others).float()
