"""Makes the frozen, randomly initialised text encoder.

The encoder is not trained. Random embeddings already tell each word from each
other, including words that no training caption contains, and small layers
mix in a little context. So an adapter can attach a meaning to any word.
"""

from __future__ import annotations

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

HIDDEN_SIZE = 96
HEAD_DIM = 32
SEED = 21
# Spread of the random layers: large enough to mix neighbouring words visibly,
# small enough that a word dominates its own hidden state.
LAYER_SPREAD = 0.04
VOCABULARY_MULTIPLE = 64


def _configuration(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLConfig:
    size = -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    text = {
        "vocab_size": size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 2 * HIDDEN_SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": HIDDEN_SIZE // HEAD_DIM,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "initializer_range": LAYER_SPREAD,
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1_000_000.0,
            # Frequencies for time, height and width; together half a head.
            "mrope_section": [4, 6, 6],
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "out_hidden_size": HIDDEN_SIZE,
        "initializer_range": LAYER_SPREAD,
    }
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)


def build_text_encoder(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    """Returns the encoder with fixed random weights, in bfloat16.

    Args:
        tokenizer: Gives the vocabulary size and the ids of the special tokens.
    """
    torch.manual_seed(SEED)
    encoder = Qwen2_5_VLForConditionalGeneration(_configuration(tokenizer))
    with torch.no_grad():
        embeddings = encoder.get_input_embeddings().weight
        embeddings.copy_(torch.randn(embeddings.shape))
    return encoder.to(torch.bfloat16).eval().requires_grad_(False)
