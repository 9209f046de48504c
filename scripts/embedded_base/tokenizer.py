"""Trains the tiny byte-level tokenizer in Qwen's format."""

from __future__ import annotations

import json
from functools import lru_cache

from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline, QwenImagePipeline
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from .words import WORDS

SPECIAL_TOKENS: tuple[str, ...] = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_PUNCTUATION = ". , : ; ! ? ' - ( ) ), \" / + # 0 1 2 3 4 5 6 7 8 9 's"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache
def prompt_template(pipeline: type) -> tuple[str, int]:
    """Reads the prompt template of a pipeline class.

    Args:
        pipeline: ``QwenImagePipeline`` or one of the edit pipelines.

    Returns:
        The template with one ``{}`` for the prompt, and the number of leading
        tokens that the pipeline drops.
    """
    instance = object.__new__(pipeline)
    empty = {"scheduler", "vae", "text_encoder", "tokenizer", "processor", "transformer"}
    names = empty & set(pipeline.__init__.__annotations__)
    pipeline.__init__(instance, **dict.fromkeys(names))
    return instance.prompt_template_encode, instance.prompt_template_encode_start_idx


def fixed_prefixes() -> list[tuple[str, int]]:
    """Returns each fixed prompt prefix with the token count it must have."""
    prefixes = []
    for pipeline in (QwenImagePipeline, QwenImageEditPipeline, QwenImageEditPlusPipeline):
        template, count = prompt_template(pipeline)
        prefixes.append((template.split("<|im_start|>user\n")[0] + "<|im_start|>user\n", count))
    return prefixes


def _corpus() -> list[str]:
    lines = [line for prefix, _ in fixed_prefixes() for line in prefix.split("<|im_")]
    lines += [line.replace("start|>", "").replace("end|>", "") for line in lines]
    for word in (*WORDS, *_PUNCTUATION.split()):
        lines += [word, f" {word}", word.capitalize()]
    return [*lines, "user\n", "system\n", "assistant\n", "\n", "Picture 1: "]


def _trained_bpe() -> Tokenizer:
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    # No limit that matters: merging ends when each known word is one token.
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(), trainer)
    return bpe


def build_tokenizer() -> Qwen2Tokenizer:
    """Trains the tokenizer.

    Returns:
        A tokenizer of Qwen's class that knows each word of ``WORDS``, with and
        without a leading space, as one token.

    Raises:
        ValueError: If a fixed prompt prefix has not the length that the
            pipelines cut off.
    """
    model = json.loads(_trained_bpe().to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merges,
        extra_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=1280,
    )
    check_prefixes(tokenizer)
    return tokenizer


def check_prefixes(tokenizer: Qwen2Tokenizer) -> None:
    """Raises ``ValueError`` unless the fixed prefixes have their fixed lengths."""
    for prefix, count in fixed_prefixes():
        found = len(tokenizer(prefix).input_ids)
        if found != count:
            raise ValueError(f"the prompt prefix has {found} tokens instead of {count}")
