"""Captions of Z-Image as tensors."""

from __future__ import annotations

from functools import partial

from ..chat_text import ChatText, load_chat_counter, load_chat_encoders
from ..flux_vae import load_vae

CHAT = ChatText(
    template="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    # What the last block but one gives.
    states=(-2,),
)

load_encoders = partial(load_chat_encoders, "transformers.Qwen3Model", CHAT, load_vae, (0, 0))
load_token_counter = partial(load_chat_counter, CHAT)
