"""What ComfyUI's classes are told of the embedded base, without ComfyUI."""

from fixtures.graph_models import make_qwen_image_vae, qwen_vae_file

from trainer_core.families.registry import embedded_family
from trainer_core.weights.diffusers_folder import read_json

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
