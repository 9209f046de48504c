"""The bundled base says everything in the words of transformers 4 too, which many hosts have.

Transformers 5 writes files that 4.57 misreads or refuses. `make matrix` loads the base
with both; this test needs neither and fails as soon as the files are written again without it.
"""

import json

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family

FOLDER = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder


def settings(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def test_what_the_two_versions_name_differently_is_written_both_ways():
    for part in ("tokenizer", "processor"):
        found = settings(f"{part}/tokenizer_config.json")
        assert "<|image_pad|>" in found["additional_special_tokens"]
        assert "extra_special_tokens" not in found, "4.57 expects a table there, not a list"
    found = settings("text_encoder/config.json")
    text = found["text_config"]
    assert found["tie_word_embeddings"] is text["tie_word_embeddings"] is True
    new, old = text["rope_parameters"], text["rope_scaling"]
    assert old["mrope_section"] == new["mrope_section"]
    assert old["rope_type"] == new["rope_type"]
    assert text["rope_theta"] == new["rope_theta"]
    pictures = settings("processor/preprocessor_config.json")
    assert pictures["min_pixels"] == pictures["size"]["shortest_edge"]
    assert pictures["max_pixels"] == pictures["size"]["longest_edge"]
