"""Captions and images of FLUX.2 as tensors, and latents as images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...data.captions.length import CountTokens
from ...errors import BaseModelError
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ...weights.loading import file_settings
from ..chat_text import ChatEncoders, ChatText, load_chat_counter, load_chat_encoders
from ..diffusers_parts import Vae
from ..diffusers_parts import load_vae as load_vae_of
from .keys import FILE

CONTROLS = {"generate": (0, 0), "edit": (0, 64)}
_SIDE = 16
_DEV = 15360
_PATCH = 2

_SYSTEM = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing "
    "on object relationships, object\nattribution and actions without speculation."
)
MISTRAL = ChatText(
    template=f"[SYSTEM_PROMPT]{_SYSTEM}[/SYSTEM_PROMPT][INST]{{}}[/INST]", states=(10, 20, 30)
)
QWEN = ChatText(
    template="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    states=(9, 18, 27),
    padded=True,
)
_KINDS = {
    "Mistral3ForConditionalGeneration": MISTRAL,
    "Qwen3ForCausalLM": QWEN,
    "Qwen3Model": QWEN,
}
"""transformers' classes of the text encoder to what is made of a caption with it."""


def latents(config: Mapping[str, Any]) -> tuple[int, int]:
    """`LatentSpec.of_config`: patches of 2 x 2 of the VAE's own are one."""
    halvings = len(config["block_out_channels"]) - 1
    return int(config.get("latent_channels", 32)) * _PATCH**2, _PATCH * 2**halvings


def control_size(width: int, height: int, area: int) -> tuple[int, int]:
    """`LatentSpec.control_size`: its own size, unless it has more pixels than wanted.

    Source: Diffusers, ``Flux2Pipeline``.
    """
    scale = min(math.sqrt(area / (width * height)), 1.0)
    wide, high = int(width * scale), int(height * scale)
    return max(wide // _SIDE, 1) * _SIDE, max(high // _SIDE, 1) * _SIDE


def flux2_vae(model: Any) -> Vae:
    """The statistics of a VAE: Diffusers' ``AutoencoderKLFlux2``, with one for each channel."""

    def statistics(values: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = (
            each.float().to(values.device).view(1, -1, 1, 1)
            for each in (model.bn.running_mean, model.bn.running_var)
        )
        return mean, torch.sqrt(variance + model.config.batch_norm_eps)

    def normalize(raw: Tensor) -> Tensor:
        patches = torch.nn.functional.pixel_unshuffle(raw, _PATCH)
        mean, deviation = statistics(patches)
        return (patches - mean) / deviation

    def denormalize(latents: Tensor) -> Tensor:
        mean, deviation = statistics(latents)
        return torch.nn.functional.pixel_shuffle(latents * deviation + mean, _PATCH)

    return Vae(model, normalize, denormalize)


load_vae = partial(load_vae_of, "diffusers.AutoencoderKLFlux2", flux2_vae)


def text_width(location: BaseLocation) -> tuple[int, bool]:
    """How many numbers a text token has that the denoiser is given, and whether it is dev.

    Dev alone is conditioned on guidance. Sizes that a file leaves out are dev's.
    """
    if location.file is not None:
        settings = file_settings(location, FILE)
    else:
        settings = read_json(location.folder / "transformer" / "config.json")
    width = int(settings.get("joint_attention_dim", _DEV))
    return width, bool(settings.get("guidance_embeds", True))


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> ChatEncoders:
    """`Family.load_encoders`, for the base's variant and its kind of text encoder.

    Raises:
        BaseModelError: When the text encoder is another base's: of dev, or of klein in the other
            size.
    """
    kind, chat = _text_encoder(location)
    encoders = load_chat_encoders(
        f"transformers.{kind}",
        chat,
        load_vae,
        controls=CONTROLS[location.variant],
        location=location,
        dtype=dtype,
        device=device,
    )
    return replace(encoders, chat=_with_beginning(chat, encoders.tokenizer))


def _with_beginning(chat: ChatText, tokenizer: Any) -> ChatText:
    """Mistral's text begins with a token of its own, which not every tokenizer puts there."""
    begin = tokenizer.bos_token
    if chat is not MISTRAL or tokenizer("a").input_ids[0] == tokenizer.bos_token_id:
        return chat
    return replace(chat, template=begin + chat.template)


def _text_encoder(location: BaseLocation) -> tuple[str, ChatText]:
    """The class of a base's text encoder, and what is made of a caption with it."""
    place = location.encoders / "text_encoder" / "config.json"
    settings = read_json(place)
    kind = str((settings.get("architectures") or [""])[0])
    chat, (wanted, _) = _KINDS.get(kind), text_width(location)
    text = settings.get("text_config", settings)
    made = None if chat is None else len(chat.states) * int(text.get("hidden_size", 0))
    if chat is None or made != wanted:
        title = next(
            (title for width, title in TITLES.items() if width == wanted), "the base's own"
        )
        raise BaseModelError(
            f"{place} is of {kind or 'no class'}, which gives {made or 'no'} numbers a token",
            f"{title}, which gives the {wanted} that the denoiser reads",
            "Set base.encoders to the Diffusers folder of the base's own size.",
        )
    return kind, chat


TITLES = {
    _DEV: "Mistral-Small 3, the text encoder of FLUX.2 dev",
    7680: "Qwen3-4B, the text encoder of FLUX.2 klein 4B",
    12288: "Qwen3-8B, the text encoder of FLUX.2 klein 9B",
}
"""How many numbers a text token of a published base has, to its text encoder."""


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`TextSpec.load_token_counter`: with those of the template."""
    return load_chat_counter(_text_encoder(location)[1], location)
