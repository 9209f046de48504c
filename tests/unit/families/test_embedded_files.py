"""The bundled base says everything in the words of transformers 4 too, which many hosts have.

Transformers 5 writes files that 4.57 misreads or refuses. `make matrix` loads the base
with both; this test needs neither and fails as soon as the files are written again without it.
"""

import json

from fixtures.graph_models import make_qwen_image_vae, qwen_vae_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import embedded_family, get_family
from trainer_core.weights.diffusers_folder import read_json

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


GRAPH_MODEL = embedded_family().graph.model


def test_weights_of_a_vae_of_published_depth_get_the_names_of_its_file():
    """The embedded one is shallower; its names are proved by loading it into ComfyUI's class."""
    vae = make_qwen_image_vae()
    names = [GRAPH_MODEL.vae_name(name, vae.config) for name in vae.state_dict()]
    assert names == list(qwen_vae_file(vae))


def test_published_sizes_change_what_a_file_does_not_say():
    config = read_json(embedded_family().embedded / "vae" / "config.json")
    own, published = GRAPH_MODEL.vae_settings(config), GRAPH_MODEL.vae_published(config)
    changed = {name for name in own if own[name] != published[name]}
    assert own.keys() == published.keys()
    assert changed == {"z_dim", "dim_mult", "num_res_blocks"}
