"""Small CLIPs of ComfyUI's own classes; ComfyUI's interpreter imports this.

Stable Diffusion 1.5, 2, XL and 3 and FLUX.1 have their own encoders at small sizes. For the other
models stands a small T5 with ComfyUI's own tokenizer, which some of them have, and which says what
the language models of the rest say besides: pooled texts, masks, hidden layers.
"""

from __future__ import annotations

from types import SimpleNamespace

import comfy.sd
import torch
from comfy import sd1_clip, sdxl_clip
from comfy.text_encoders import flux, sd2_clip, sd3_clip

from .sizes import WIDTH
from .weights import fill


def _clip_sizes(width: int, layers: int = 2) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "projection_dim": width,
    }


_WHOLE = _clip_sizes(WIDTH)
_HALF = _clip_sizes(WIDTH // 2, layers=3)
_T5 = {"d_model": WIDTH, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
_LEAST = 16
"""Tokens to which the stand-in fills a short text whose mask counts."""


class _StandIn(sd1_clip.SD1ClipModel):
    """A small T5 that says what another model's encoder says.

    Args:
        pooled: Whether it gives a pooled text.
        mask: Whether it gives an attention mask.
        extra: Gives what else belongs to a conditioning, from tokens and hidden states.
    """

    def __init__(self, pooled=False, mask=False, extra=None, **options):
        whole = sd3_clip.T5XXLModel
        super().__init__(name="t5xxl", clip_model=whole, attention_mask=mask, **options)
        self.pooled, self.extra = pooled, extra

    def encode_token_weights(self, token_weight_pairs):
        cond, _, *more = super().encode_token_weights(token_weight_pairs)
        found = dict(*more)
        if self.extra is not None:
            found |= self.extra(token_weight_pairs["t5xxl"], cond)
        return cond, cond.mean(1) if self.pooled else None, found


def _llama_layers(tokens, cond):
    """HiDream's: hidden states `[1, layers, L, D]` of a second encoder."""
    return {"conditioning_llama3": torch.stack([cond.flip(-1), cond.roll(1, -1)], dim=1)}


def _t5_tokens(tokens, cond):
    """Anima's: the text once more in the tokens of T5, and their weights."""
    ids = torch.tensor([token for part in tokens for token, _ in part])
    return {"t5xxl_ids": ids, "t5xxl_weights": torch.ones(len(ids))}


def _unprocessed(tokens, cond):
    """LTX-2's: the model itself makes its two texts of it."""
    return {"unprocessed_ltxav_embeds": True}


def _token_tags(tokens, cond):
    """MiniMax-H3's: which tokens are of the text, and which of an image."""
    return {"minimax_token_tags": torch.ones(cond.shape[1], dtype=torch.long)}


def _stand_in(least=1, **says):
    def model(device="cpu", dtype=None, model_options=None):
        return _StandIn(device=device, dtype=dtype, model_options=model_options, **says)

    def tokenizer(embedding_directory=None, tokenizer_data=None):
        return sd1_clip.SD1Tokenizer(
            embedding_directory=embedding_directory,
            tokenizer_data={"t5xxl_min_length": least},
            name="t5xxl",
            tokenizer=sd3_clip.T5XXLTokenizer,
        )

    return tokenizer, model, {"t5xxl_model_config": _T5}


KINDS = {
    "sd1": lambda: (sd1_clip.SD1Tokenizer, sd1_clip.SD1ClipModel, {"clip_l_model_config": _WHOLE}),
    "sd2": lambda: (
        sd2_clip.SD2Tokenizer,
        sd2_clip.SD2ClipModel,
        {"clip_h_model_config": _clip_sizes(WIDTH, layers=3)},
    ),
    "sdxl": lambda: (
        sdxl_clip.SDXLTokenizer,
        sdxl_clip.SDXLClipModel,
        {"clip_l_model_config": _HALF, "clip_g_model_config": _HALF},
    ),
    "refiner": lambda: (
        sdxl_clip.SDXLTokenizer,
        sdxl_clip.SDXLRefinerClipModel,
        {"clip_g_model_config": _clip_sizes(WIDTH, layers=3)},
    ),
    "sd3": lambda: (
        sd3_clip.SD3Tokenizer,
        sd3_clip.sd3_clip(t5=False),
        {"clip_l_model_config": _HALF, "clip_g_model_config": _HALF},
    ),
    "flux": lambda: (
        flux.FluxTokenizer,
        flux.flux_clip(),
        {"clip_l_model_config": _WHOLE, "t5xxl_model_config": _T5},
    ),
    "plain": lambda: _stand_in(),
    "masked": lambda: _stand_in(mask=True),
    "padded": lambda: _stand_in(_LEAST, mask=True),
    "pooled_masked": lambda: _stand_in(_LEAST, mask=True, pooled=True),
    "anima": lambda: _stand_in(extra=_t5_tokens),
    "ltxav": lambda: _stand_in(extra=_unprocessed),
    "minimax_h3": lambda: _stand_in(extra=_token_tags),
    "hidream": lambda: _stand_in(pooled=True, extra=_llama_layers),
}
"""Tokenizer, model and sizes by name."""


def tiny_clip(kind: str, seed: int = 0):
    """ComfyUI's CLIP with random weights."""
    tokenizer, model, sizes = KINDS[kind]()
    target = SimpleNamespace(params={}, clip=model, tokenizer=tokenizer)
    clip = comfy.sd.CLIP(target, model_options={"dtype": torch.float32, **sizes})
    fill(clip.cond_stage_model, seed)
    return clip
