"""The shared text side of families with a chat model, against transformers' own hidden states."""

from typing import Any, cast

import pytest
import torch

from tests.fixtures.qwen_base import make_qwen_tokenizer
from tests.fixtures.small_chat_models import small_qwen3
from trainer_core.families.chat_text import (
    ChatEncoders,
    ChatText,
    count_rows,
    cut_rows,
    second_message,
)

_SYSTEM = "<|im_start|>system\nSay it.<|im_end|>\n<|im_start|>user\n"


@pytest.fixture(scope="module")
def model() -> Any:
    return small_qwen3()


def _encoders(model: Any, chat: ChatText, length: int = 99) -> ChatEncoders:
    return ChatEncoders(chat, make_qwen_tokenizer(), model, cast(Any, None), length, (0, 0), "base")


def test_the_templates_beginning_is_dropped_and_a_caption_cut_behind_it(model: Any) -> None:
    template = _SYSTEM + "{}<|im_end|>\n"
    whole = _encoders(model, ChatText(template, (-2,))).encode_text("a red cat")
    chat = ChatText(template, (-2,), dropped=_SYSTEM)
    start = len(make_qwen_tokenizer()(_SYSTEM).input_ids)
    behind = _encoders(model, chat).encode_text("a red cat")["text_embeddings"]
    torch.testing.assert_close(behind, whole["text_embeddings"][start:])
    cut = _encoders(model, chat, length=4).encode_text("a red cat")["text_embeddings"]
    torch.testing.assert_close(cut, behind[:4])


def test_rows_of_comfyui_are_cut_behind_the_second_message() -> None:
    row = [(token, 1.0) for token in (151644, 7, 2, 151644, 872, 198, 1, 2, 3, 2)]
    rows = {"qwen": [row]}
    assert count_rows(rows) == 10
    assert count_rows(rows, second_message) == 4
    assert cut_rows(rows, None, 0)["qwen"] == [row]
    assert cut_rows(rows, 4, 0)["qwen"] == [row[:4]]
    assert cut_rows(rows, 2, 0, second_message)["qwen"] == [row[:8]]
    seen = [*row[:8], ({"type": "image"}, 1.0), *row[8:]]
    assert cut_rows({"qwen": [seen]}, 1, 1, second_message)["qwen"] == [seen[:10]]
