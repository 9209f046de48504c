"""ComfyUI and the trainer load one file into the same weights and predict the same velocity."""

import hashlib
import json

import pytest
import torch
from comfyui.readings import relative
from comfyui.selection import selected
from fixtures.families import hosted, record
from fixtures.family_inputs import host_inputs, made_inputs
from fixtures.full_size import full_size_transformer, linear_layers
from fixtures.native_files import F8, to_scaled
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.weights.diffusers_folder import read_json

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

SCALED = ("old", "new", "header")
FORMATS = ("fp32", "bf16", "fp16", "fp8", *SCALED, "checkpoint")
EXHAUSTIVE = pytest.mark.exhaustive
MARK = "__index_timestep_zero__"
EXTRA = [("flux", "diffusers"), ("flux", "swapped"), ("qwen_image", "marked")]
QUICK = ("bf16", "new")
TRIED = ("flux", "qwen_image")
"""The families of which every format is looked at; of the others those of the quick set are."""


def cases(formats):
    """Families with formats; each family with one in the quick set, in turn."""
    found = []
    for at, family in enumerate(hosted()):
        own = [name for name in formats if family in TRIED or name in QUICK]
        quick = {QUICK[at % 2], "new" if family in TRIED else ""}
        found += [(family, name, () if name in quick else EXHAUSTIVE) for name in own]
    return [pytest.param(family, name, marks=marks) for family, name, marks in found]


def stored(native, name):
    """Tensors and metadata of a file in a format."""
    casts = {"bf16": torch.bfloat16, "marked": torch.bfloat16, "fp16": torch.float16, "fp8": F8}
    if name in SCALED:
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
    """The files that a test of this run looks at, and those that are compared with others."""
    looked_at = selected(request, "family", "name")
    return sorted({*looked_at, ("flux", "fp32"), ("qwen_image", "bf16"), *EXTRA})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, wanted):
    folder = tmp_path_factory.mktemp("files")
    for family in hosted():
        kept = record(family)
        state = kept.small().state_dict()
        native = kept.host.to_native(state)
        # The names of a plain file are looked at in any case.
        for own, name in {*wanted, (family, "fp32")}:
            if own != family:
                continue
            given = {"diffusers": state}.get(name, native)
            given = swap_query_and_key(native) if name == "swapped" else given
            tensors, metadata = stored(given, name)
            path = folder / f"{family}-{name}.safetensors"
            save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
        save_file(host_inputs(kept, *made_inputs(kept)), folder / f"{family}.inputs")
        full = kept.host.to_native(full_size_transformer(family).state_dict())
        layout = {name: list(tensor.shape) for name, tensor in full.items()}
        (folder / f"{family}.layout").write_text(json.dumps(layout))
    return folder


@pytest.fixture(scope="module")
def results(comfy_host, folder, wanted):
    """Every file loaded by ComfyUI: velocities, digests of weights, class."""
    families = {
        family: {
            "inputs": str(folder / f"{family}.inputs"),
            "plain": str(folder / f"{family}-fp32.safetensors"),
            "sizes": {
                "detected": dict(record(family).host.detected),
                "matched": dict(record(family).host.matched),
            },
            "files": {
                str(folder / f"{own}-{name}.safetensors"): str(folder / f"{own}-{name}.result")
                for own, name in wanted
                if own == family
            },
        }
        for family in hosted()
    }
    headers = {str(folder / f"{name}.layout"): str(folder / f"{name}.own") for name in families}
    jobs = {"families": families, "headers": headers}
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    comfy_host.run("single_file_process.py", folder / "jobs.json")
    found = {}
    for family, name in wanted:
        path = folder / f"{family}-{name}.result"
        with safe_open(path, "pt") as file:
            found[family, name] = (load_file(path), file.metadata())
    return found


def load(folder, family, name, dtype):
    section = BaseSection(path=str(folder / f"{family}-{name}.safetensors"))
    controls = bool(record(family).controls)
    location = locate_base(section, get_family(family), controls, needs_encoders=False)
    return get_family(family).load_transformer(location, dtype, "cpu")


def predict(family, transformer, reference):
    kept = record(family)
    noisy, sigma, text, controls = made_inputs(kept)
    with torch.no_grad():
        return get_family(family).prediction.predict(
            transformer, noisy, sigma, [text], controls if reference else [], kept.guidance
        )


def digests(family, transformer, header):
    """SHA-256 of every weight, by its name in ComfyUI's model."""
    names = json.loads(header["names"])
    return {
        names[name]: hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy()).hexdigest()
        for name, tensor in record(family).host.to_native(transformer.state_dict()).items()
        if name in names
    }


@pytest.mark.parametrize(("family", "name"), [*cases(FORMATS), EXTRA[0]])
def test_comfyui_predicts_what_we_predict(family, name, folder, results):
    tensors, header = results[family, name]
    host = record(family).host
    assert header["kind"] == host.kind
    transformer = load(folder, family, name, torch.float32)
    errors = {
        key: relative(predict(family, transformer, key != "plain"), tensors[key]) for key in tensors
    }
    assert len(errors) == 1 + bool(record(family).controls)
    assert max(errors.values()) <= host.tolerance, errors
    ours, theirs = digests(family, transformer, header), json.loads(header["float32"])
    assert ours
    assert {name: theirs[name] for name in ours} == ours
    if record(family).controls:
        # The reference reaches the prediction, so that the second comparison says something.
        assert relative(tensors["with reference"], tensors["plain"]) > 0.01


@pytest.mark.parametrize(("family", "name"), cases(("fp8", *SCALED)))
def test_weights_are_dequantised_in_bfloat16_as_by_comfyui(family, name, folder, results):
    transformer, header = load(folder, family, name, torch.bfloat16), results[family, name][1]
    kept = {name for name, p in transformer.named_parameters() if p.dtype == torch.float32}
    assert kept == record(family).kept
    if not kept:
        theirs = json.loads(header["bfloat16"])
        ours = digests(family, transformer, header)
        assert {name: theirs[name] for name in ours} == ours


def test_a_swapped_query_and_key_is_noticed(folder, results):
    transformer = load(folder, "flux", "fp32", torch.float32)
    ours = predict("flux", transformer, reference=False)
    tensors, header = results["flux", "swapped"]
    assert relative(ours, tensors["plain"]) > 0.001
    expected, found = json.loads(header["float32"]), digests("flux", transformer, header)
    assert [name for name in expected if expected[name] != found[name]] == [
        "double_blocks.0.img_attn.qkv.weight"
    ]


def test_the_marker_of_2511_changes_what_a_reference_means(folder, results):
    marked, plain = results["qwen_image", "marked"][0], results["qwen_image", "bf16"][0]
    assert relative(marked["with reference"], plain["with reference"]) > 0.001
    assert torch.equal(marked["plain"], plain["plain"])
    ours = predict("qwen_image", load(folder, "qwen_image", "marked", torch.float32), True)
    assert relative(ours, marked["with reference"]) <= 1e-5
    unmarked = load(folder, "qwen_image", "bf16", torch.float32)
    ours = predict("qwen_image", unmarked, reference=True)
    assert relative(ours, marked["with reference"]) > 0.001


@pytest.mark.parametrize("family", hosted())
def test_full_size_names_and_shapes_are_those_of_comfyuis_own_model(family, folder, results):
    """And the family's own names of all layers, whole and fused, are those of its matrices."""
    own, facts = json.loads((folder / f"{family}.own").read_text()), get_family(family)
    assert own["kind"] == record(family).host.kind
    assert own["file"] == own["layout"]
    matrices = {
        name.removesuffix(".weight")
        for name, shape in own["layout"].items()
        if name.endswith(".weight") and len(shape) == 2
    }
    keys = {
        path: facts.layers.key_map.to_native(path)
        for path in linear_layers(full_size_transformer(family))
    }
    assert {key.name for key in keys.values() if key is not None} <= matrices
    unnamed = matrices - {key.name for key in keys.values() if key is not None}
    swapped = {name.native for name in facts.layers.key_map.comfyui_names}
    assert unnamed <= swapped | record(family).host.untrained


@pytest.mark.parametrize(
    ("family", "variant"),
    [(family, variant) for family in hosted() for variant in get_family(family).variants],
)
def test_the_packs_settings_are_those_of_comfyuis_own_model(family, variant, folder, results):
    own = json.loads((folder / f"{family}.own").read_text())
    facts, published = get_family(family), record(family).published[1]
    configs = facts.files.single_file.configs / variant
    denoiser, vae = (read_json(configs / part / "config.json") for part in ("transformer", "vae"))
    if denoiser.get("num_layers") == published.get("num_layers"):
        assert denoiser.get("guidance_embeds", False) == own["guidance"]
    axes = denoiser.get("axes_dims_rope") or denoiser.get("axes_dims")
    if own["axes"] and axes:
        assert axes == own["axes"]
        assert own["theta"] == denoiser.get("rope_theta", 10000), "what Diffusers computes with"
    zero, one = (torch.tensor(values) for values in own["latents"])
    if facts.graph is not None:
        means, deviations = map(torch.tensor, (facts.graph.vae.mean, facts.graph.vae.deviation))
    if vae.get("latents_mean") or vae.get("scaling_factor"):
        means = torch.tensor(vae.get("latents_mean") or vae.get("shift_factor") or 0.0)
        deviations = torch.tensor(vae.get("latents_std") or 1 / vae.get("scaling_factor", 1))
    assert torch.allclose((-means / deviations).expand_as(zero), zero, atol=1e-6)
    assert torch.allclose(((1 - means) / deviations).expand_as(one), one, atol=1e-6)
