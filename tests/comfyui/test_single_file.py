"""ComfyUI and the trainer load one file into the same weights and predict the same velocity."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from comfyui.selection import selected
from fixtures.full_size import full_size_transformer
from fixtures.native_files import (
    F8,
    flux_to_native,
    make_native_flux,
    to_scaled,
)
from fixtures.wide_qwen import wide_qwen
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.weights.diffusers_folder import read_json

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

FORMATS = ("fp32", "bf16", "fp16", "fp8", "old", "new", "header")
MARK = "__index_timestep_zero__"
SIGMA, GUIDANCE = 0.7, 3.0
TEXT_WIDTH = {"flux": 48, "qwen_image": 3584}
CASES = [
    *(("flux", name) for name in FORMATS),
    ("flux", "checkpoint"),
    ("flux", "diffusers"),
    # These are large. In every format they are compared with their source in the unit tests.
    ("qwen_image", "bf16"),
    pytest.param("qwen_image", "new", marks=pytest.mark.exhaustive),
    pytest.param("qwen_image", "marked", marks=pytest.mark.exhaustive),
]


def make_inputs(family):
    generator = torch.Generator().manual_seed(5)
    return {
        "noisy": torch.randn(1, 16, 12, 8, generator=generator),
        "reference": torch.randn(1, 16, 8, 8, generator=generator),
        "text": torch.randn(1, 7, TEXT_WIDTH[family], generator=generator),
        "pooled": torch.randn(1, 24, generator=generator),
        "sigma": torch.tensor([SIGMA]),
        "guidance": torch.tensor([GUIDANCE]),
    }


def stored(native, name):
    """Tensors and metadata of a file in a format."""
    casts = {"bf16": torch.bfloat16, "marked": torch.bfloat16, "fp16": torch.float16, "fp8": F8}
    if name in {"old", "new", "header"}:
        return to_scaled(native, name)
    tensors = {k: v.to(casts.get(name, torch.float32)) for k, v in native.items()}
    if name == "marked":
        tensors[MARK] = torch.zeros(0)
    if name == "checkpoint":
        tensors = {f"model.diffusion_model.{k}": v for k, v in tensors.items()}
        tensors["vae.encoder.conv_in.weight"] = torch.ones(2, 2)
    return tensors, {}


def swap_query_and_key(native):
    name = "double_blocks.0.img_attn.qkv.weight"
    q, k, v = native[name].chunk(3)
    return {**native, name: torch.cat([k, q, v])}


@pytest.fixture(scope="module")
def wanted(request):
    """The files that a test of this run looks at."""
    cases = selected(request, "family", "name")
    return sorted({*cases, ("flux", "fp32"), ("qwen_image", "bf16")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, wanted):
    folder = tmp_path_factory.mktemp("files")
    for family in ("flux", "qwen_image"):
        if family == "flux":
            state = make_native_flux().state_dict()
            native = flux_to_native(state)
            save_file(swap_query_and_key(native), folder / "flux-swapped.safetensors")
        else:
            state = native = wide_qwen()
        for name in [name for own, name in wanted if own == family]:
            tensors, metadata = stored(state if name == "diffusers" else native, name)
            path = folder / f"{family}-{name}.safetensors"
            save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
        save_file(make_inputs(family), folder / f"{family}.inputs")
        full = full_size_transformer(family).state_dict()
        full = flux_to_native(full) if family == "flux" else full
        layout = {name: list(tensor.shape) for name, tensor in full.items()}
        (folder / f"{family}.layout").write_text(json.dumps(layout))
    yield folder
    for path in folder.glob("*.safetensors"):
        path.unlink()  # they are large


@pytest.fixture(scope="module")
def results(comfy_host, folder, wanted):
    """Every file loaded by ComfyUI: velocities, digests of weights, class."""
    cases = [*wanted, ("flux", "swapped")]
    jobs = {
        "files": {
            str(folder / f"{family}-{name}.safetensors"): [
                family,
                str(folder / f"{family}-{name}.result"),
            ]
            for family, name in cases
        },
        "inputs": {family: str(folder / f"{family}.inputs") for family in TEXT_WIDTH},
        "headers": {
            str(folder / f"{family}.layout"): str(folder / f"{family}.own") for family in TEXT_WIDTH
        },
    }
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    comfy_host.run("single_file_process.py", folder / "jobs.json")
    found = {}
    for family, name in cases:
        path = folder / f"{family}-{name}.result"
        with safe_open(path, "pt") as file:
            found[family, name] = (load_file(path), file.metadata())
    return found


def load(folder, family, name, dtype):
    section = BaseSection(path=str(folder / f"{family}-{name}.safetensors"))
    location = locate_base(section, get_family(family), has_controls=True, needs_encoders=False)
    return get_family(family).load_transformer(location, dtype, "cpu")


def predict(folder, family, transformer, reference):
    inputs = load_file(folder / f"{family}.inputs")
    text = {"text_embeddings": inputs["text"][0], "pooled_text": inputs["pooled"][0]}
    controls = [inputs["reference"]] if reference else []
    sigma = inputs["sigma"]
    with torch.no_grad():
        return get_family(family).predict(
            transformer, inputs["noisy"], sigma, [text], controls, GUIDANCE
        )


def relative(value, expected):
    return float((value - expected).norm() / expected.norm())


def digests(family, transformer):
    state = transformer.state_dict()
    native = flux_to_native(state) if family == "flux" else state
    return {
        name.replace("_norm.scale", "_norm.weight"): hashlib.sha256(
            tensor.contiguous().view(torch.uint8).numpy()
        ).hexdigest()
        for name, tensor in native.items()
    }


@pytest.mark.parametrize(("family", "name"), CASES)
def test_comfyui_predicts_what_we_predict(family, name, folder, results):
    tensors, header = results[family, name]
    assert header["kind"] == {"flux": "Flux", "qwen_image": "QwenImage"}[family]
    transformer = load(folder, family, name, torch.float32)
    errors = {}
    for key, reference in (("plain", False), ("with reference", True)):
        ours = predict(folder, family, transformer, reference)
        errors[key] = relative(ours, tensors[key])
    assert max(errors.values()) <= 1e-5, errors
    assert digests(family, transformer) == json.loads(header["float32"])
    # The reference reaches the prediction, so that the second comparison says something.
    assert relative(tensors["with reference"], tensors["plain"]) > 0.01


@pytest.mark.parametrize(
    ("family", "name"),
    [*(("flux", name) for name in ("fp8", "old", "new", "header")), CASES[-2]],
)
def test_weights_are_dequantised_in_bfloat16_as_by_comfyui(family, name, folder, results):
    transformer = load(folder, family, name, torch.bfloat16)
    assert digests(family, transformer) == json.loads(results[family, name][1]["bfloat16"])


def test_a_swapped_query_and_key_is_noticed(folder, results):
    transformer = load(folder, "flux", "fp32", torch.float32)
    ours = predict(folder, "flux", transformer, reference=False)
    tensors, header = results["flux", "swapped"]
    assert relative(ours, tensors["plain"]) > 0.001
    expected, found = json.loads(header["float32"]), digests("flux", transformer)
    assert [name for name in expected if expected[name] != found[name]] == [
        "double_blocks.0.img_attn.qkv.weight"
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("family", "name"), [("qwen_image", "marked")])
def test_the_marker_of_2511_changes_what_a_reference_means(family, name, folder, results):
    marked, plain = results[family, name][0], results["qwen_image", "bf16"][0]
    assert relative(marked["with reference"], plain["with reference"]) > 0.001
    assert torch.equal(marked["plain"], plain["plain"])
    unmarked = load(folder, "qwen_image", "bf16", torch.float32)
    ours = predict(folder, "qwen_image", unmarked, reference=True)
    assert relative(ours, marked["with reference"]) > 0.001


@pytest.mark.parametrize("family", ["flux", "qwen_image"])
def test_full_size_names_and_shapes_are_those_of_comfyuis_own_model(family, folder, results):
    layout = json.loads((folder / f"{family}.layout").read_text())
    own = json.loads((folder / f"{family}.own").read_text())["layout"]
    assert {name.replace("_norm.scale", "_norm.weight"): s for name, s in layout.items()} == own


@pytest.mark.parametrize(
    ("family", "variant"),
    [(family, variant) for family in TEXT_WIDTH for variant in get_family(family).variants],
)
def test_the_packs_settings_are_those_of_comfyuis_own_model(family, variant, folder, results):
    own = json.loads((folder / f"{family}.own").read_text())
    configs = get_family(family).file.configs / variant
    denoiser, vae = (read_json(configs / part / "config.json") for part in ("transformer", "vae"))
    assert denoiser["axes_dims_rope"] == own["axes"]
    assert own["theta"] == 10000, "what Diffusers computes with"
    assert denoiser["guidance_embeds"] == own["guidance"]
    means = torch.tensor(vae.get("latents_mean") or [vae.get("shift_factor")] * 16)
    deviations = torch.tensor(vae.get("latents_std") or [1 / vae.get("scaling_factor", 1)] * 16)
    zero, one = (torch.tensor(values) for values in own["latents"])
    assert torch.allclose(-means / deviations, zero, atol=1e-6)
    assert torch.allclose((1 - means) / deviations, one, atol=1e-6)
