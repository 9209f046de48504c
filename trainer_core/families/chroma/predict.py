"""The denoiser of Chroma in the trainer's convention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...types import Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pack, pipeline_time, unpack
from ..flux_blocks import positions
from .attention import keep_texts_apart


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Chroma.

    No published base is made for control images, and none is conditioned on guidance: what is left
    of it in the model is always 0. Each conditioning has ``text_embeddings`` `[L, D]`.
    """
    dtype = computing_dtype(transformer)
    inner = inner_module(transformer)
    keep_texts_apart(inner)
    tokens = pack(noisy).to(dtype)
    texts = [item["text_embeddings"] for item in conditionings]
    lengths = tuple(len(text) for text in texts)
    text = pad_sequence(texts, batch_first=True).to(tokens)
    inner.pos_embed.text_lengths = lengths if min(lengths) < max(lengths) else None
    output = transformer(
        hidden_states=tokens,
        timestep=pipeline_time(sigma, dtype),
        encoder_hidden_states=text,
        txt_ids=torch.zeros(text.shape[1], 3, device=tokens.device),
        img_ids=positions(noisy, 0),
        return_dict=False,
    )[0]
    return unpack(output, *noisy.shape[-2:]).to(noisy.dtype)
