"""Captions of Chroma as tensors: without padding, as ComfyUI encodes them.

Diffusers adds padding and lets the denoiser attend to all of it, at lower weight (see the test).
"""

from __future__ import annotations

from functools import partial

from ..flux_vae import load_vae
from ..t5_text import T5Encoders, load_t5_counter, load_t5_encoders

load_encoders = partial(
    load_t5_encoders, "transformers.T5EncoderModel", "Chroma", load_vae, form=T5Encoders
)
load_token_counter = load_t5_counter
