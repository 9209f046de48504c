"""ComfyUI's model classes as the trainer finds them, and files for models that it trains."""

import json
import re

import pytest

from trainer_core.families.registry import get_family

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native_names")
    comfy_host.run("native_names_process.py", folder, folder / "result.json")
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


# Layers of `default`, `attention` and `all_linear`, counted by hand from the classes' sources.
COUNTS = {
    # 16 transformers of one block: 8 projections, 2 of the MLP, and one layer on either side.
    "sd15": (16 * (8 + 2 + 2), 16 * 8, 16 * 10 + 22 + 2),
    "sd21": (16 * (8 + 2 + 2), 16 * 8, 16 * 12 + 22 + 2),
    # 11 transformers with 70 blocks.
    "sdxl": (70 * 10 + 11 * 2, 70 * 8, 70 * 10 + 11 * 2 + 17 + 2 + 2),
    # Of the last block's text stream only q, k and v are there.
    "sd3_medium": (24 * 8 - 3, 24 * 4 - 1, 24 * 10 - 3 + 2 + 2 + 1 + 2),
    "flux": (19 * 8 + 38 * 2, 19 * 4 + 38 * 2, 19 * 10 + 38 * 3 + 10),
    "flux2": (8 * 8 + 48 * 2, 8 * 4 + 48 * 2, 8 * 8 + 48 * 2 + 11),
    "chroma": (19 * 8 + 38 * 2, 19 * 4 + 38 * 2, 19 * 8 + 38 * 2 + 15),
    "lumina2": (26 * 5, 26 * 2, 26 * 6 + 2 * 6 + 2 * 5 + 6),
    "z_image": (30 * 5, 30 * 2, 30 * 6 + 2 * 6 + 2 * 5 + 6),
    "qwen_image": (60 * 12, 60 * 8, 60 * 14 + 6),
    "wan21": (40 * 10, 40 * 8, 40 * 10 + 6),
    "hunyuan_video": (20 * 8 + 40 * 2, 20 * 4 + 40 * 2, 20 * 10 + 40 * 3 + 2 * 5 + 13),
    "ltxv": (28 * 10, 28 * 8, 28 * 10 + 7),
    # A routed MLP has four experts and one that all share, of three layers each.
    "hidream": (16 * 26 + 32 * 19, 16 * 8 + 32 * 4, 16 * 27 + 32 * 20 + 49 + 7),
    "cosmos1": (28 * 10, 28 * 8, 28 * 16 + 6),
    "cosmos2": (28 * 10, 28 * 8, 28 * 16 + 6),
    "anima": (28 * 10, 28 * 8, 28 * 16 + 6 + 6 * 10 + 1),
    "auraflow": (4 * 14 + 32 * 7, 4 * 8 + 32 * 4, 4 * 16 + 32 * 8 + 6),
    "pixart": (28 * 7, 28 * 5, 28 * 7 + 6),
    "krea2": (28 * 8, 28 * 5, 28 * 8 + 4 * 8 + 8),
    "kandinsky5": (32 * 10, 32 * 8, 32 * 11 + 2 * 7 + 7),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_presets_of_comfyuis_classes_have_the_layers_that_they_should(name, found):
    default, attention, linear = COUNTS[name]
    counts = found["classes"][name]["counts"]
    assert counts["default"] == counts["attention_mlp"] == default
    assert counts["attention"] == attention
    assert counts["all_linear"] == linear


def test_a_unet_has_the_layers_of_kohyas_trainer(found):
    """722 modules of SDXL and 192 of SD 1.5, as its log says."""
    counts = {name: found["classes"][name]["counts"] for name in ("sd15", "sdxl")}
    assert counts["sdxl"]["default"] == 722
    assert counts["sd15"]["default"] == 192
    # 22 residual blocks of two convolutions, 14 that change the channels, 6 that change the size.
    assert counts["sd15"]["convolutions"] == 192 + 22 * 2 + 14 + 6
    assert counts["sdxl"]["convolutions"] == 722 + 17 * 2 + 11 + 4


BLOCKS = {
    "sdxl": ["input_blocks", "middle_block", "output_blocks"],
    "flux": ["double_blocks", "single_blocks"],
    "chroma": ["double_blocks", "single_blocks"],
    "z_image": ["noise_refiner", "context_refiner", "layers"],
    "hunyuan_video": ["txt_in.individual_token_refiner.blocks", "double_blocks", "single_blocks"],
    "hidream": ["double_stream_blocks", "single_stream_blocks"],
    "cosmos1": ["blocks"],
    "anima": ["blocks", "llm_adapter.blocks"],
    "krea2": ["blocks", "txtfusion.layerwise_blocks", "txtfusion.refiner_blocks"],
    "kandinsky5": ["text_transformer_blocks", "visual_transformer_blocks"],
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_found_in_comfyuis_classes(name, found):
    assert found["classes"][name]["blocks"] == BLOCKS[name]


@pytest.mark.parametrize("name", ["flux", "flux2", "chroma", "z_image", "qwen_image", "krea2"])
def test_the_default_is_that_of_the_family_that_we_have(name, found):
    """Its patterns name layers of Diffusers' model; several of them may be one of ComfyUI's."""
    family = get_family(name)
    natives = set()
    for template in family.key_map.layers:
        if any(
            re.fullmatch(each, template.replace("{}", "0")) for each in family.presets["default"]
        ):
            natives.add(family.key_map.to_native(template.replace("{}", "0")).name)
    own = {re.sub(r"\.\d+\.", ".0.", each, count=1) for each in found["classes"][name]["default"]}
    assert own == natives


SMALL = ("sd15", "sdxl", "flux", "wan21")


@pytest.mark.parametrize("name", SMALL)
def test_comfyui_knows_every_name_of_the_trainers_table(name, found):
    table = found["small"][name]["table"]
    assert table["names"] > 100
    assert table["not ComfyUI's"] == []
    assert table["in another order"] == []
    if name != "flux":
        assert table["ComfyUI's alone"] == []
    else:
        # Names of a model in which layers are divided that are one here.
        native = [each for each in table["ComfyUI's alone"] if each.startswith("diffusion_model.")]
        assert native == [f"diffusion_model.single_blocks.{n}.linear1_qkv" for n in range(2)]


@pytest.mark.parametrize("name", SMALL)
def test_comfyui_loads_every_layer_as_it_was_trained(name, found):
    files = found["small"][name]["files"]
    assert {"comfyui", "kohya"} <= set(files)
    for read in files.values():
        assert read["messages"] == []
        assert read["patches"] == read["layers"] > 20
        assert read["largest difference"] < 1e-6
