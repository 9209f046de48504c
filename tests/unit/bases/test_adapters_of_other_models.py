"""Adapter files of other models are named for what they are, and never taken for ours."""

import itertools
import re

import pytest
from safetensors.torch import load_file, save_file
from torch import ones

from tests.fixtures.adapters_of_other_models import MODELS, attention, model_layers, write_lora
from tests.fixtures.combinations import rarely
from tests.fixtures.full_size import full_size_transformer
from tests.fixtures.tables import table
from trainer_core.adapter_files.names.video_model_names import VIDEO_MODELS
from trainer_core.bases.adapter_family import adapter_family, other_models
from trainer_core.bases.base_weights import known_sizes
from trainer_core.cli import main
from trainer_core.errors import AdapterFileError
from trainer_core.families.registry import FAMILIES

OURS = {
    "flux": "FluxTransformer2DModel",
    "flux2": "Flux2Transformer2DModel",
    "qwen_image": "QwenImageTransformer2DModel",
}
TWINS = {"longcat"}
"""Their attention alone has FLUX.1's names, sizes and numbers of blocks."""

ALIKE = {"pixart": "PixArt or Sana"}
"""Models whose attention alone fits several that we do not train."""

UNNAMED = {"hunyuan video", "hunyuan video 1.5"}
"""ComfyUI has the halves of their ``norm_out.linear`` the other way round."""

VIDEO_TITLES = {title for each in VIDEO_MODELS.values() for title in each.titles}
SPELLINGS = ("transformer", "lora_unet_", "base_model.model", "unet")
SPELT = ("sdxl", "sd35 medium", "hunyuan image", "hunyuan video")


def write_named(path, layers):
    """A LoRA with names that are spelt as they are given, zeros of rank 1."""
    flat = {name: (ones(1, columns), ones(rows, 1)) for name, (rows, columns) in layers.items()}
    tensors = {f"{name}.lora_down.weight": down for name, (down, _) in flat.items()}
    tensors |= {f"{name}.lora_up.weight": up for name, (_, up) in flat.items()}
    save_file(tensors, path)
    return path


def own_layers(family):
    from torch import nn

    return {
        name: (each.out_features, each.in_features)
        for name, each in full_size_transformer(family).named_modules()
        if isinstance(each, nn.Linear)
    }


FILES = [
    *((model, SPELLINGS[0]) for model in list(MODELS)[::4]),
    *(("wan 1.3b", spelling) for spelling in SPELLINGS[1:]),
    *rarely((model, SPELLINGS[0]) for model in MODELS),
    *rarely(itertools.product(SPELT, SPELLINGS[1:])),
]
"""Every model as Diffusers spells it, and a few in every spelling."""


@pytest.mark.parametrize(("model", "spelling"), FILES)
def test_a_file_of_another_model_is_named(model, spelling, tmp_path):
    title, _, _ = MODELS[model]
    whole = model_layers(model)
    for layers in (whole, attention(whole)):
        if layers is not whole and model in TWINS:
            continue
        path = write_lora(tmp_path / "a.safetensors", layers, spelling)
        if title in VIDEO_TITLES and not (layers is whole and model in UNNAMED):
            assert title in adapter_family(path).title
            assert other_models(path) == title
            continue
        with pytest.raises(AdapterFileError) as error:
            adapter_family(path)
        if model in UNNAMED:
            assert f": an adapter for {title}, of which ComfyUI's names" in error.value.found
            continue
        wanted = title if layers is whole else ALIKE.get(model, title)
        assert f": an adapter for {wanted} (layers such as" in error.value.found
        assert wanted in error.value.remedy
        assert other_models(path) == wanted
        for mine in FAMILIES if model in {"lumina 2", "sana"} else ():
            with pytest.raises(AdapterFileError):
                adapter_family(path, mine)


def flux_layers():
    """The first and the last of every layer of FLUX.1, with their sizes."""
    sizes = next(iter(known_sizes(FAMILIES["flux"]).values()))
    for path, size in sizes.layers.items():
        for number in {0, sizes.blocks.get(path.partition(".{}")[0], 1) - 1}:
            yield path.replace("{}", str(number)), size


UNREAD = {
    "GLoRA": lambda name, o, i: {
        f"lycoris_{name.replace('.', '_')}.{end}.weight": ones(*size)
        for end, size in {"a1": (i, 1), "a2": (1, i), "b1": (o, 1), "b2": (1, i)}.items()
    },
    "another method of PEFT": lambda name, o, i: {f"base_model.model.{name}.ia3_l": ones(1, i)},
    "IA3": lambda name, o, i: {
        f"lycoris_{name.replace('.', '_')}.{end}": ones(1, 1) for end in ("weight", "on_input")
    },
    "alpha is nan": lambda name, o, i: {
        f"transformer.{name}.lora_down.weight": ones(1, i),
        f"transformer.{name}.lora_up.weight": ones(o, 1),
        f"transformer.{name}.alpha": ones(()) * float("nan"),
    },
    "mixes layouts": lambda name, o, i: {
        f"{prefix}{name}.lora_{end}.weight": ones(*size)
        for prefix in ("transformer." if "attn" in name else "base_model.model.",)
        for end, size in {"A": (1, i), "B": (o, 1)}.items()
    },
}


@pytest.mark.parametrize("what", UNREAD)
def test_a_file_of_ours_that_is_not_read_says_why_and_is_no_other_models(what, tmp_path, capsys):
    path, tensors = tmp_path / "a.safetensors", {}
    for name, (outputs, inputs) in flux_layers():
        tensors |= UNREAD[what](name, outputs, inputs)
    save_file(tensors, path)
    assert other_models(path) == "FLUX.1"
    with pytest.raises(AdapterFileError, match=what):
        adapter_family(path)
    assert main(["inspect", str(path)]) == 2
    shown = capsys.readouterr().err
    assert what in shown
    assert "It is an adapter for FLUX.1" in shown


def whole_lokr(name, outputs, inputs):
    flat = f"lycoris_{name.replace('.', '_')}"
    return {f"{flat}.lokr_w1": ones(64, 64), f"{flat}.lokr_w2": ones(outputs // 64, inputs // 64)}


@pytest.mark.parametrize("form", [UNREAD["GLoRA"], whole_lokr])
def test_sizes_tell_whose_it_is(form, tmp_path):
    """All of these names are FLUX.1's too, and no factor has the layer's size."""
    path, tensors = tmp_path / "a.safetensors", {}
    for name, size in {
        "double_blocks.0.img_mlp.0": (24576, 4096),
        "single_blocks.0.linear1": (36864, 4096),
    }.items():
        tensors |= form(name, *size)
    save_file(tensors, path)
    assert other_models(path) == "FLUX.2"


def lora(name, rows, columns, ends=(".lora_A.weight", ".lora_B.weight")):
    return {name + ends[0]: ones(1, columns), name + ends[1]: ones(rows, 1)}


LTX = {
    key: value
    for number in range(12)
    for key, value in lora(
        f"diffusion_model.transformer_blocks.{number}.attn1.to_q", 2048, 2048
    ).items()
}
STRANGERS = [
    "text_embedding_projection.aggregate_embed",
    "video_embeddings_connector.blocks.0.to_q",
    "lora_te1.text_model.encoder.layers.0.mlp.fc1",
    "cond_stage_model.transformer.layers.0.fc1",
    "base_model.model.text_model.encoder.layers.0.mlp.fc1",
    "refiner.layers.0.fc1",
]


@pytest.mark.parametrize("name", STRANGERS)
def test_a_layer_of_another_part_does_not_hide_the_model(name, tmp_path, capsys):
    path = tmp_path / "a.safetensors"
    save_file({**LTX, **lora(name, 4, 4)}, path)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "of rank 1 for LTX-Video or LTX-2: 12 layers" in shown
    assert "keys beside its factors: 2" in shown
    assert f"{name}.lora_A.weight" in shown


def test_clips_layers_tell_flux_from_qwen_image_and_are_converted(tmp_path, capsys):
    """Of two families with the same names and sizes, one has this text encoder."""
    path, out = tmp_path / "a.safetensors", tmp_path / "out.safetensors"
    tensors = lora("lora_te1.text_model.encoder.layers.0.mlp.fc1", 3072, 768)
    tensors |= lora("transformer.transformer_blocks.0.attn.to_q", 3072, 3072)
    save_file(tensors, path)
    assert main(["inspect", str(path), "--prove"]) == 1
    shown = capsys.readouterr().out
    assert "NOT FINE: 2 of 4 tensors are loaded" in shown
    assert "not read" not in shown
    assert "text_model.encoder.layers.0.mlp.fc1" in shown.partition("weakest")[2]
    assert main(["convert", str(path), str(out), "--to", "comfyui"]) == 0
    assert main(["inspect", str(out), "--prove"]) == 0
    assert "Fine: 6 of 6 tensors" in capsys.readouterr().out


NATIVE = table(__file__, "native_names")


@pytest.mark.parametrize("name", NATIVE)
def test_comfyuis_and_musubis_names_are_known(name, tmp_path):
    title, rows, columns = NATIVE[name]
    path = write_named(tmp_path / "a.safetensors", {name: (rows, columns)})
    if title in VIDEO_TITLES:
        assert title in adapter_family(path).title
        return
    with pytest.raises(AdapterFileError, match=rf"an adapter for {title} \("):
        adapter_family(path)


@pytest.mark.parametrize("family", OURS)
def test_the_sizes_are_those_of_diffusers_own_class(family):
    sizes, known = next(iter(known_sizes(FAMILIES[family]).values())), own_layers(family)
    for name, size in known.items():
        assert size == sizes.of(name), name
        assert sizes.lacks_block(name) == ""
    templates = {name for name in sizes.layers if "{}" not in name}
    assert templates <= set(known) | {f"time_text_embed.guidance_embedder.linear_{n}" for n in "12"}
    blocks = {name.split(".")[0] for name in known if re.search(r"^\w+\.\d+\.", name)}
    assert blocks
    for stack in blocks:
        assert sizes.lacks_block(f"{stack}.{sizes.blocks[stack]}.x")


ODD = {
    "a block too many": {"transformer.single_transformer_blocks.99.proj_mlp": (12288, 3072)},
    "a small base": {"transformer.single_transformer_blocks.0.proj_mlp": (512, 128)},
    "a small base, fused": {"diffusion_model.double_blocks.0.img_attn.qkv": (384, 128)},
    "another MLP": {"diffusion_model.double_blocks.0.img_mlp.0": (9216, 3072)},
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("words", [[], ["--family", "flux"]])
def test_other_sizes_need_the_base(case, words, tmp_path, capsys):
    path = write_named(tmp_path / "a.safetensors", ODD[case])
    out = tmp_path / "out.safetensors"
    assert main(["convert", str(path), str(out), "--to", "kohya", *words]) == 2
    shown = capsys.readouterr().err
    assert "FLUX.1 as published" in shown or case == "another MLP"
    assert "FLUX.1, name that base" in shown
    assert "--base" in shown
    assert not out.exists()
    if case != "another MLP":
        assert adapter_family(path, any_size=True).name == "flux"


SHARED = {f"transformer_blocks.{n}.attn.{p}": (3072, 3072) for n in range(19) for p in ("to_q",)}


def test_what_fits_two_families_is_asked_for_with_the_reason(tmp_path):
    path = write_lora(tmp_path / "a.safetensors", SHARED)
    with pytest.raises(AdapterFileError, match="same names and sizes in both") as error:
        adapter_family(path)
    for option in ("--family qwen_image", "--family flux"):
        assert option in error.value.remedy
    assert adapter_family(path, "flux").name == "flux"
    # One block more than FLUX.1 has, or a layer that the other lacks.
    more = {**SHARED, "transformer_blocks.19.attn.to_q": (3072, 3072)}
    assert adapter_family(write_lora(path, more)).name == "qwen_image"
    more = {**SHARED, "single_transformer_blocks.3.attn.to_q": (3072, 3072)}
    assert adapter_family(write_lora(path, more)).name == "flux"


@pytest.mark.parametrize(
    ("header", "family"),
    [
        ({"ss_base_model_version": "qwen_image"}, "qwen_image"),
        ({"modelspec.architecture": "Qwen-Image/lora"}, "qwen_image"),
        ({"ss_base_model_version": "flux1"}, "flux"),
        ({"modelspec.architecture": "Flux.1-dev/lora"}, "flux"),
        ({"modelspec.architecture": "chroma/lora"}, "chroma"),
        ({"modelspec.architecture": "chroma-radiance/lora"}, None),
        ({"ss_base_model_version": "hunyuan-video"}, "HunyuanVideo or HunyuanVideo 1.5"),
    ],
)
def test_a_header_settles_what_fits_several(header, family, tmp_path):
    path = write_lora(tmp_path / "a.safetensors", SHARED)
    save_file(load_file(path), path, header)
    if family not in (None, *FAMILIES):
        assert adapter_family(path).title == family
        return
    if family is not None:
        assert adapter_family(path).name == family
        assert other_models(path, FAMILIES[family]) == ""
        return
    with pytest.raises(AdapterFileError, match="its header says so") as error:
        adapter_family(path)
    assert "--family" in error.value.remedy
