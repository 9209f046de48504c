"""CLIP and VAE objects of a real ComfyUI give what the Diffusers components give."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from comfyui.readings import relative
from comfyui.test_chat_encoders import CASES
from fixtures import graph_models
from fixtures.families import hosted
from fixtures.stand_ins import CLIP_L as SMALLEST
from fixtures.tables import table
from PIL import Image
from safetensors.torch import load_file, save_file

from trainer_core.families.flux.encode import FluxEncoders
from trainer_core.families.flux.fill import MASK, masked_latents
from trainer_core.families.flux_vae import shifted_vae as flux_vae
from trainer_core.families.qwen_image.encode import QwenEncoders, prompt_text
from trainer_core.families.qwen_vae import qwen_vae
from trainer_core.families.registry import get_family

pytestmark = pytest.mark.comfy

CLIP_L = {**SMALLEST, "num_hidden_layers": 3}
"""SD3 reads the last layer but one."""

TOLERANCE = 1e-4
ROUNDING = 1e-5
"""Some tens of the last place of float32: of two encodings, whose sums may be in another order."""
SHORT = "a red cube on a table"
LONG = "a slow blue river runs past the old mill, and " * 40
CAPTIONS = [SHORT, "", "a caf\u00e9 in \u5317\u4eac, \U0001f600 \u2014 50% off!", LONG]
WEIGHTED = "a (red:1.4) cube"
INSTRUCTION = "make the cube blue"
FLUX_TEXTS = [*((caption, 256) for caption in CAPTIONS), (SHORT, 64), (LONG, 512)]
QWEN_TEXTS = [*((caption, None) for caption in CAPTIONS), (SHORT, 9), (LONG, 9)]
# This size stays as it is at every resize of ComfyUI's edit node and of the image processor.
STILL = (112, 1316)
FITTING = {"family": "qwen_image", "variant": "edit_plus", "length": None, "caption": INSTRUCTION}


def image(width, height, seed):
    """Smooth and coloured, so that a resize keeps its content."""
    generator = numpy.random.default_rng(seed)
    coarse = generator.integers(0, 256, (6, 5, 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


IMAGES = {"wide": image(96, 64, 1), "tall": image(40, 120, 2), "still": image(*STILL, 3)}


def text_jobs():
    jobs = [
        {"family": "flux", "variant": "generate", "length": length, "caption": caption}
        for caption, length in FLUX_TEXTS
    ]
    jobs += [
        {"family": "qwen_image", "variant": "generate", "length": length, "caption": caption}
        for caption, length in QWEN_TEXTS
    ]
    jobs += [
        {**FITTING, "controls": ["still"]},
        {**FITTING, "controls": ["still"], "length": 3},
        {**FITTING, "controls": ["wide", "tall"]},
        {**FITTING, "controls": ["wide"], "variant": "edit"},
        {**FITTING, "controls": []},
        {**FITTING, "controls": [], "variant": "edit"},
        {**FITTING, "controls": ["wide"], "variant": "layered", "caption": SHORT},
        {"family": "flux", "variant": "generate", "length": None, "caption": WEIGHTED},
        {"family": "flux", "variant": "edit", "length": None, "caption": SHORT}
        | {"controls": ["wide"]},
    ]
    return jobs


JOBS = text_jobs()


@pytest.fixture(scope="module")
def models():
    return {
        "clip_l": graph_models.make_clip_l(**CLIP_L),
        "t5xxl": graph_models.make_t5(),
        "qwen_vl": graph_models.make_qwen_vl(),
        "qwen_vae": graph_models.make_qwen_image_vae(),
        "qwen_layered_vae": graph_models.make_qwen_image_vae(4),
        "flux_vae": graph_models.make_full_flux_vae(),
    }


@pytest.fixture(scope="module")
def pixels():
    shown = [image(32, 64, seed) for seed in (8, 9)]
    values = numpy.stack([numpy.array(each) for each in shown]).astype(numpy.float32)
    return torch.from_numpy(values / 127.5 - 1).movedim(-1, 1).contiguous()


def with_alpha(pixels):
    """Transparent at the left, and ever less so to the right."""
    alpha = torch.linspace(-1, 1, pixels.shape[-1]).expand_as(pixels[:, :1])
    return torch.cat([pixels, alpha], dim=1).contiguous()


@pytest.fixture(scope="module")
def found(comfy_host, models, pixels, tmp_path_factory):
    """Everything that one process of ComfyUI's loaders found: tensors and facts."""
    folder = tmp_path_factory.mktemp("encoders")
    graph_models.write_files(folder, models)
    controls = {name: torch.from_numpy(numpy.array(each)) for name, each in IMAGES.items()}
    given = {"pixels": pixels, "rgba": with_alpha(pixels), **controls}
    save_file(given, folder / "images.safetensors")
    vision = {**graph_models.QWEN_VISION, "num_layers": graph_models.QWEN_VISION_DEPTH}
    jobs = {
        "texts": JOBS,
        "captions": [*CAPTIONS, WEIGHTED],
        "instruction": INSTRUCTION,
        "clip_l": CLIP_L,
        "t5": graph_models.T5_CONFIG,
        "qwen": graph_models.QWEN_CONFIG,
        "vision": vision,
    }
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    facts = comfy_host.results("encoders_process.py", folder)
    return SimpleNamespace(tensors=load_file(folder / "results.safetensors"), facts=facts)


@pytest.fixture(scope="module")
def flux_reference(comfyui, models):
    from transformers import CLIPTokenizer, T5TokenizerFast

    comfy = comfyui[0] / "comfy"
    clip_tokenizer = CLIPTokenizer.from_pretrained(comfy / "sd1_tokenizer", model_max_length=77)
    t5_tokenizer = T5TokenizerFast.from_pretrained(comfy / "text_encoders" / "t5_tokenizer")
    parts = (clip_tokenizer, models["clip_l"], t5_tokenizer, models["t5xxl"])
    return lambda length: FluxEncoders(*parts, flux_vae(models["flux_vae"]), "generate", length)


@pytest.fixture(scope="module")
def qwen_tokenizer(comfyui):
    from transformers import Qwen2Tokenizer

    folder = comfyui[0] / "comfy" / "text_encoders" / "qwen25_tokenizer"
    return Qwen2Tokenizer.from_pretrained(folder)


def result(found, **job):
    index = next(i for i, each in enumerate(JOBS) if job.items() <= each.items())
    prefix = f"text {index}/"
    return {k.removeprefix(prefix): v for k, v in found.tensors.items() if k.startswith(prefix)}


@pytest.mark.parametrize(("caption", "length"), FLUX_TEXTS)
def test_flux_texts_are_those_of_diffusers(caption, length, found, flux_reference):
    expected = flux_reference(length).encode_text(caption)
    mine = result(found, family="flux", caption=caption, length=length)
    assert mine.keys() == expected.keys() == {"text_embeddings", "pooled_text"}
    assert len(mine["text_embeddings"]) == length
    for key, value in expected.items():
        assert relative(mine[key], value) < TOLERANCE, key


def test_flux_texts_are_those_of_clip_text_encode_but_for_a_long_one(found):
    for caption in (*CAPTIONS[:3], WEIGHTED):
        mine = result(found, family="flux", caption=caption)
        assert torch.equal(mine["text_embeddings"], found.tensors[f"node flux {caption}/text"][0])
        assert torch.equal(mine["pooled_text"], found.tensors[f"node flux {caption}/pooled"][0])
    assert found.facts["t5 tokens"][:3] == [256, 256, 256]
    assert found.facts["t5 tokens"][3] == len(found.tensors[f"node flux {LONG}/text"][0]) > 256
    # Another length gives other embeddings, and control images the same.
    full, more = (result(found, family="flux", caption=LONG, length=n) for n in (256, 512))
    assert relative(more["text_embeddings"][:256], full["text_embeddings"]) > 100 * TOLERANCE
    assert torch.equal(more["pooled_text"], full["pooled_text"])
    edit, plain = result(found, variant="edit", family="flux"), result(found, caption=SHORT)
    assert torch.equal(edit["text_embeddings"], plain["text_embeddings"])


@pytest.mark.parametrize(("caption", "length"), QWEN_TEXTS)
def test_qwen_texts_are_those_of_diffusers(caption, length, found, models, qwen_tokenizer):
    vae = qwen_vae(models["qwen_vae"])
    parts = (qwen_tokenizer, models["qwen_vl"], vae, None, "generate")
    expected = QwenEncoders(*parts, length or 1024).encode_text(caption)
    mine = result(found, family="qwen_image", variant="generate", caption=caption, length=length)
    assert mine.keys() == expected.keys() == {"text_embeddings"}
    assert relative(mine["text_embeddings"], expected["text_embeddings"]) < TOLERANCE


@pytest.mark.parametrize("caption", CAPTIONS)
def test_qwen_texts_and_tokens_are_those_of_clip_text_encode(caption, found, qwen_tokenizer):
    mine = result(found, family="qwen_image", variant="generate", caption=caption, length=None)
    assert torch.equal(mine["text_embeddings"], found.tensors[f"node qwen_image {caption}/text"][0])
    ids = qwen_tokenizer(prompt_text("generate", caption, ())).input_ids
    assert found.facts["tokens"][caption] == ids
    user = qwen_tokenizer("<|im_start|>user\n").input_ids
    assert ids[34 - len(user) : 34] == user
    edit = qwen_tokenizer(prompt_text("edit_plus", caption, (3,))).input_ids
    assert edit[64 - len(user) : 64] == user


@pytest.mark.parametrize("length", [None, 3])
def test_an_edit_text_sees_the_image_as_in_transformers(length, found, models, qwen_tokenizer):
    """The resizes differ between ComfyUI and Diffusers; here is a size that both leave alone."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    prepared = Qwen2VLImageProcessorPil()(images=[IMAGES["still"]], return_tensors="pt")
    grid = prepared["image_grid_thw"]
    count = int(grid.prod()) // 4
    assert grid.tolist() == [[1, STILL[1] // 14, STILL[0] // 14]]
    text = prompt_text("edit_plus", INSTRUCTION, (count,))
    ids = qwen_tokenizer(text, return_tensors="pt").input_ids
    token = models["qwen_vl"].config.image_token_id
    # The image and the token that closes it stay, whatever the length.
    last = int((ids[0] == token).nonzero()[-1])
    ids = ids if length is None else ids[:, : max(64 + length + count, last + 2)]
    with torch.no_grad():
        output = models["qwen_vl"].model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=prepared["pixel_values"],
            image_grid_thw=grid,
            mm_token_type_ids=(ids == token).int(),
        )
    mine = result(found, variant="edit_plus", length=length, controls=["still"])
    assert relative(mine["text_embeddings"], output.last_hidden_state[0, 64:]) < TOLERANCE


@pytest.mark.parametrize("variant", ["edit", "edit_plus"])
def test_edit_texts_are_those_of_comfyuis_edit_nodes(variant, found):
    controls = ["wide"] if variant == "edit" else ["wide", "tall"]
    mine = result(found, variant=variant, controls=controls)["text_embeddings"]
    theirs = found.tensors[f"node {variant}/text"][0]
    assert torch.equal(mine, theirs)
    area = 1024 * 1024 if variant == "edit" else 2 * 384 * 384
    assert len(mine) == pytest.approx(area / 28**2, rel=0.1)
    # Without images, whose node has another template.
    bare = result(found, variant=variant, controls=[])["text_embeddings"]
    own, other = ("Edit", "EditPlus") if variant == "edit" else ("EditPlus", "Edit")
    assert torch.equal(bare, found.tensors[f"bare node {own}/text"][0])
    others = found.tensors[f"bare node {other}/text"][0]
    assert others.shape != bare.shape or not torch.equal(bare, others)


@pytest.mark.parametrize(
    ("variant", "file", "node"),
    [("edit", "qwen_image_edit_fp8", "Edit"), ("edit_plus", "qwen_image_edit_2511", "EditPlus")],
)
def test_a_model_of_the_graph_is_shown_images_as_by_comfyuis_edit_nodes(variant, file, node, found):
    theirs = found.tensors[f"node {variant}/text"]
    assert torch.equal(found.tensors[f"model {variant}/text"], theirs)
    bare = found.tensors[f"bare node {node}/text"]
    assert torch.equal(found.tensors[f"bare model {file}/text"], bare)
    seen, unseen = (found.tensors[f"{each} prediction {file}/pixels"] for each in ("seen", "bare"))
    assert relative(seen, unseen) > 1e-4, "the MODEL predicts with what its CLIP has seen"


@pytest.mark.parametrize("family", ["flux", "qwen_image"])
def test_latents_and_images_are_those_of_diffusers(family, found, models, pixels):
    reference = {"flux": flux_vae, "qwen_image": qwen_vae}[family](
        models["flux_vae" if family == "flux" else "qwen_vae"]
    )
    latents, decoded = (found.tensors[f"vae {family}/{name}"] for name in ("latents", "pixels"))
    assert relative(latents, reference.encode(pixels)) < TOLERANCE
    expected = reference.decode(latents)
    assert relative(decoded, expected) < TOLERANCE
    assert decoded.shape == pixels.shape
    assert float((expected.abs() < 1).float().mean()) > 0.2, "all of it is clipped"
    # The normalisation is that of ComfyUI's model: two roundings of float32 by other factors.
    in_model, raw = (
        found.tensors[f"vae {family}/{name}"].reshape(latents.shape) for name in ("format", "raw")
    )
    assert relative(latents, in_model) < ROUNDING
    assert relative(raw, in_model) > 0.05


def test_layers_are_encoded_with_their_transparency(found, models, pixels):
    reference, given = qwen_vae(models["qwen_layered_vae"]), with_alpha(pixels)
    latents, decoded = (found.tensors[f"vae layered/{name}"] for name in ("latents", "pixels"))
    assert relative(latents, reference.encode(given)) < TOLERANCE
    assert relative(decoded, reference.decode(latents)) < TOLERANCE
    assert decoded.shape == given.shape
    opaque = torch.cat([pixels, torch.ones_like(given[:, 3:])], dim=1)
    assert relative(latents, reference.encode(opaque)) > 100 * TOLERANCE


def test_what_is_to_be_filled_is_left_out_and_its_mask_kept(found, models, pixels):
    reference, latents = flux_vae(models["flux_vae"]), found.tensors["vae fill/latents"]
    expected = masked_latents(with_alpha(pixels), reference.encode)
    channels = latents.shape[1] - MASK
    torch.testing.assert_close(latents[:, channels:], expected[:, channels:], rtol=0, atol=1e-6)
    assert relative(latents[:, :channels], expected[:, :channels]) < TOLERANCE
    assert relative(latents[:, :channels], reference.encode(pixels)) > 100 * TOLERANCE


def test_a_text_for_layers_sees_no_image(found):
    mine = result(found, variant="layered", caption=SHORT)
    plain = result(found, family="qwen_image", variant="generate", caption=SHORT, length=None)
    assert torch.equal(mine["text_embeddings"], plain["text_embeddings"])


def test_every_familys_text_encoder_and_vae_are_compared():
    """Here, and in `test_chat_encoders` and `test_flux2_encoders`."""
    named = [name for name in hosted() if get_family(name).graph is not None]
    assert {"flux", "qwen_image", "flux2", *CASES} == set(named)
    compared = [get_family(name).graph.vae for name in ("flux", "qwen_image", "flux2")]
    for family in named:
        vae = get_family(family).graph.vae
        assert any(vae is each for each in compared), family


def test_comfyui_finds_every_weight_in_the_files_and_gives_ordinary_tensors(found):
    """But for CLIP-L's last projection, which FLUX does not use."""
    assert found.facts["missing"] == ["clip missing: ['text_projection.weight']"]
    assert found.facts["not ordinary"] == []


def test_importing_the_encoders_loads_no_heavy_library(comfyui):
    """Whatever the environment itself has imported: these modules can be found by nobody."""
    root, python = comfyui
    forbid = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'diffusers'))"
    load = "import loaded_pack; print(loaded_pack.part('nodes.host.family_encoders').__name__)"
    paths = os.pathsep.join([str(root), str(Path(__file__).parent)])
    done = subprocess.run(
        [python, "-c", f"{forbid}; {load}"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.strip().endswith("nodes.host.family_encoders"), done.stderr


SAME = ("second load", "vae second load", "explicit length", "first, while patched")
OTHER = ("length", "variant", "no vae", "weight", "precision", "layer", "lora", "lora strength")


def test_the_identity_tells_every_change_apart_and_nothing_else(found):
    names = found.facts["identities"]
    assert {case: names[case] == names["first"] for case in SAME} == dict.fromkeys(SAME, True)
    assert len({names["first"], *(names[case] for case in OTHER)}) == 1 + len(OTHER)
    assert names["lora"] == names["lora, while patched"]
    assert found.facts["patched in place"] > 0, "the LoRA was not patched in"
    assert not torch.equal(
        found.tensors["lora/pooled_text"], result(found, caption=SHORT)["pooled_text"]
    )


ERRORS = table(__file__, "wrong encoders")


@pytest.mark.parametrize("case", ERRORS)
def test_what_does_not_fit_is_said_in_three_parts(case, found):
    kind, problem, expected, remedy = found.facts[f"error {case}"]
    assert kind == "InputError"
    assert ERRORS[case][0] in problem
    assert expected
    assert ERRORS[case][1] in remedy


def test_other_wrong_input_has_its_own_kind_of_error(found):
    kinds = {"family": "BaseModelError", "variant": "ConfigError"}
    kinds |= dict.fromkeys(("controls", "image token"), "DatasetError")
    assert {case: found.facts[f"error {case}"][0] for case in kinds} == kinds
    assert found.facts["unconnected"] == "comfyui flux generate"
