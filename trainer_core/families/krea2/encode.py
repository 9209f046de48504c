"""Captions of Krea 2 as stacks of hidden states."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...data.captions.length import CountTokens
from ...errors import BaseModelError
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ..chat_text import ChatEncoders, ChatText, load_chat_counter, load_chat_encoders
from ..qwen_vae import load_vae

_PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity,"
    " text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
TEMPLATE = f"{_PREFIX}{{}}<|im_end|>\n<|im_start|>assistant\n"
STATES = tuple(range(2, 36, 3))
"""Hidden states that the published bases read; none of them is behind the model's final norm."""


CHAT = ChatText(TEMPLATE, STATES, stacked=True, dropped=_PREFIX)


def _states(location: BaseLocation) -> tuple[int, ...]:
    """The hidden states that the base's pipeline names, or the published ones."""
    path = location.encoders / "model_index.json"
    layers = read_json(path).get("text_encoder_select_layers") if path.is_file() else None
    if layers is None:
        return STATES
    if not isinstance(layers, list) or not all(type(each) is int for each in layers):
        raise BaseModelError(
            f"{path} says text_encoder_select_layers: {str(layers)[:200]}",
            "a list of whole numbers, such as 2, 5, 8",
            "Copy or download the base again; the file is damaged.",
        )
    return tuple(layers)


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> ChatEncoders:
    """`Family.load_encoders`: captions are encoded one by one and without padding.

    Diffusers' pipeline pads before it adds the template's end, and counts positions past the
    padding; what it gives of real tokens is the same.
    """
    kind, chat = "transformers.Qwen3VLModel", replace(CHAT, states=_states(location))
    return load_chat_encoders(
        kind, chat, load_vae, controls=(0, 0), location=location, dtype=dtype, device=device
    )


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`TextSpec.load_token_counter`: tokens behind the template's prefix."""
    return load_chat_counter(CHAT, location)
