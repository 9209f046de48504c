"""The shared text side of families with a chat model, against transformers' own hidden states."""

from typing import Any, cast

import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLModel

from tests.fixtures.qwen_base import make_qwen_tokenizer
from tests.fixtures.small_chat_models import small_qwen3
from trainer_core.families.chat_text import (
    ChatEncoders,
    ChatText,
    count_rows,
    cut_rows,
    hidden_states,
    second_message,
    text_part,
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


def test_a_model_with_a_vision_tower_is_read_by_its_text_blocks() -> None:
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 300}
    vision = {"hidden_size": 16, "depth": 1, "intermediate_size": 16, "num_heads": 2}
    vision |= {"out_hidden_size": 16, "deepstack_visual_indexes": [0]}
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
    config = Qwen3VLConfig(text_config=text | {"rope_scaling": rope}, vision_config=vision)
    torch.manual_seed(0)
    model = Qwen3VLModel(config).eval()
    ids = torch.arange(6)[None]
    expected = model(input_ids=ids, output_hidden_states=True).hidden_states[1][0]
    for asked in (model, text_part(model)):
        ((got,),) = hidden_states(asked, (1,), {"input_ids": ids})
        torch.testing.assert_close(got, expected)


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
