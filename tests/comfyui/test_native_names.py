"""ComfyUI's model classes as the trainer finds them, and files for models that it trains."""

import json
import re

import pytest
from comfyui.selection import selected
from fixtures.combinations import some

from trainer_core.families.registry import get_family

pytestmark = pytest.mark.comfy


QUICK = ("sd15", "sdxl", "flux", "z_image")


@pytest.fixture(scope="module")
def found(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native_names")
    classes = {"sd15", "sdxl", *(name for (name,) in selected(request, "name"))}
    small = sorted(name for (name,) in selected(request, "small"))
    names = {"classes": sorted(classes), "small": small}
    (folder / "names.json").write_text(json.dumps(names), encoding="utf-8")
    return comfy_host.results("native_names_process.py", folder)


# Layers of `default`, `attention` and `all_linear`, counted by hand from the classes' sources.
COUNTS = {
    # 16 transformers of one block: 8 projections, 2 of the MLP, and one layer on either side.
    "sd15": (16 * (8 + 2 + 2), 16 * 8, 16 * 10 + 22 + 2),
    "sd2_v": (16 * (8 + 2 + 2), 16 * 8, 16 * 12 + 22 + 2),
    # 11 transformers with 70 blocks.
    "sdxl": (70 * 10 + 11 * 2, 70 * 8, 70 * 10 + 11 * 2 + 17 + 2 + 2),
    # Of the last block's text stream only q, k and v are there; the first has attention twice.
    "sd3": (2 * 8 - 3 + 2, 2 * 4 - 1 + 2, 2 * 10 - 3 + 2 + 2 + 2 + 1 + 2),
    "flux": (2 * 8 + 2 * 2, 2 * 4 + 2 * 2, 2 * 10 + 2 * 3 + 10),
    "flux2": (2 * 8 + 2 * 2, 2 * 4 + 2 * 2, 2 * 8 + 2 * 2 + 11),
    "chroma": (2 * 8 + 2 * 2, 2 * 4 + 2 * 2, 2 * 8 + 2 * 2 + 9),
    "lumina2": (2 * 5, 2 * 2, 2 * 6 + 6 + 5 + 6),
    "z_image": (2 * 5, 2 * 2, 2 * 6 + 6 + 5 + 6),
    "qwen_image": (2 * 12, 2 * 8, 2 * 14 + 6),
    "wan21": (2 * 10, 2 * 8, 2 * 10 + 6),
    "hunyuan_video": (2 * 8 + 2 * 2, 2 * 4 + 2 * 2, 2 * 10 + 2 * 3 + 2 * 5 + 13),
    "ltxv": (2 * 10, 2 * 8, 2 * 10 + 7),
    # The same for sound, which no clip without it reaches, and two attentions between both.
    "ltxav": (2 * 28, 2 * 24, 2 * (28 + 6) + 50),
    # A routed MLP has four experts and one that all share, of three layers each.
    "hidream": (2 * 26 + 2 * 19, 2 * 8 + 2 * 4, 2 * 27 + 2 * 20 + 5 + 7),
    "cosmos_predict2": (2 * 10, 2 * 8, 2 * 16 + 6),
    "anima": (2 * 10, 2 * 8, 2 * 16 + 6 + 2 * 10 + 1),
    "auraflow": (14 + 2 * 7, 8 + 2 * 4, 16 + 2 * 8 + 6),
    "pixart_sigma": (2 * 7, 2 * 5, 2 * 7 + 6),
    "krea2": (2 * 8, 2 * 5, 2 * 8 + 4 * 8 + 8),
    "kandinsky5_image": (2 * 10, 2 * 8, 2 * 11 + 7 + 7),
}


@pytest.mark.parametrize("name", some(COUNTS, *QUICK))
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
    "cosmos_predict2": ["blocks"],
    "anima": ["blocks", "llm_adapter.blocks"],
    "krea2": ["blocks", "txtfusion.layerwise_blocks", "txtfusion.refiner_blocks"],
    "kandinsky5_image": ["text_transformer_blocks", "visual_transformer_blocks"],
}


@pytest.mark.parametrize("name", some(BLOCKS, *QUICK))
def test_blocks_are_found_in_comfyuis_classes(name, found):
    assert found["classes"][name]["blocks"] == BLOCKS[name]


@pytest.mark.parametrize(
    "name", some(["flux", "flux2", "chroma", "z_image", "qwen_image", "krea2"], *QUICK)
)
def test_the_default_is_that_of_the_family_that_we_have(name, found):
    """Its patterns name layers of Diffusers' model; several of them may be one of ComfyUI's."""
    family = get_family(name)
    natives = set()
    for template in family.layers.key_map.layers:
        if any(
            re.fullmatch(each, template.replace("{}", "0"))
            for each in family.layers.presets["default"]
        ):
            natives.add(family.layers.key_map.to_native(template.replace("{}", "0")).name)
    own = {re.sub(r"\.\d+\.", ".0.", each, count=1) for each in found["classes"][name]["default"]}
    assert own == natives


VIDEOS = ("wan21_i2v", "hunyuan_video", "hunyuan_video15", "ltxv", "kandinsky5", "cosmos_predict2")
SMALL = some(("sd15", "sdxl", "flux", *VIDEOS), "sdxl", "flux")


@pytest.mark.parametrize("small", SMALL)
def test_comfyui_knows_every_name_of_the_trainers_table(small, found):
    table = found["small"][small]["table"]
    assert table["names"] > 90
    assert table["not ComfyUI's"] == []
    assert table["in another order"] == []
    if small != "flux":
        assert table["ComfyUI's alone"] == []
    else:
        # Names of a model in which layers are divided that are one here.
        native = [each for each in table["ComfyUI's alone"] if each.startswith("diffusion_model.")]
        assert native == [f"diffusion_model.single_blocks.{n}.linear1_qkv" for n in range(2)]


@pytest.mark.parametrize("small", SMALL)
def test_comfyui_loads_every_layer_as_it_was_trained(small, found):
    files = found["small"][small]["files"]
    assert {"comfyui", "kohya"} <= set(files)
    for read in files.values():
        assert read["messages"] == []
        assert read["patches"] == read["layers"] > 20
        assert read["largest difference"] < 1e-6
