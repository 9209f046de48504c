"""Captions, images and clips of Wan as tensors."""

from __future__ import annotations

from functools import partial

from ..diffusers_parts import load_vae as load_vae_of
from ..qwen_vae import qwen_vae
from ..t5_text import load_t5_counter, load_t5_encoders

load_vae = partial(load_vae_of, "diffusers.AutoencoderKLWan", qwen_vae)
load_encoders = partial(load_t5_encoders, "transformers.UMT5EncoderModel", "Wan 2.1", load_vae)
load_token_counter = load_t5_counter
