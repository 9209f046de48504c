"""The bundled base says everything in the words of transformers 4 too, which many hosts have.

Transformers 5 writes files that 4.57 misreads or refuses. `make matrix` loads the base
with both; this test needs neither and fails as soon as the files are written again without it.
"""

import json

import pytest

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family

FOLDER = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder


def settings(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", ["tokenizer", "processor"])
def test_special_tokens_are_listed_under_the_older_name(part):
    found = settings(f"{part}/tokenizer_config.json")
    assert "<|image_pad|>" in found["additional_special_tokens"]
    assert "extra_special_tokens" not in found, "4.57 expects a table there, not a list"


def test_rotary_settings_are_written_both_ways():
    text = settings("text_encoder/config.json")["text_config"]
    new, old = text["rope_parameters"], text["rope_scaling"]
    assert old["mrope_section"] == new["mrope_section"]
    assert old["rope_type"] == new["rope_type"]
    assert text["rope_theta"] == new["rope_theta"]


def test_the_word_predictor_is_tied_for_both():
    found = settings("text_encoder/config.json")
    assert found["tie_word_embeddings"] is found["text_config"]["tie_word_embeddings"] is True


def test_picture_sizes_are_written_both_ways():
    found = settings("processor/preprocessor_config.json")
    assert found["min_pixels"] == found["size"]["shortest_edge"]
    assert found["max_pixels"] == found["size"]["longest_edge"]
