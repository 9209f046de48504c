"""A merged base computes what the base computes with the adapter, in every form of base."""

import hashlib
import json
import statistics

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.fixtures.flux_files import FLUX, random_adapter, write_folder, write_native
from tests.fixtures.native_files import flux_to_native, make_native_flux, to_scaled
from tests.fixtures.textbook import relative, textbook_delta
from trainer_core.bases.base_weights import open_base
from trainer_core.bases.write_merged import merge_into_base
from trainer_core.errors import AdapterError, NonFiniteError
from trainer_core.types import AdapterState, LayerState

STRENGTH = 0.7
KINDS = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr": {"kind": "lokr", "factor": 4},
    "dora input": {"kind": "lora", "dora": True},
    "dora output": {"kind": "lokr", "factor": -1, "dora": True, "dora_axis": "output"},
}
FUSED = "double_blocks.0.img_attn.qkv.weight"


@pytest.fixture(scope="module")
def model():
    return make_native_flux(layers=1, single_layers=1)


@pytest.fixture(scope="module")
def original(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def adapters(model):
    return {name: random_adapter(model, **options) for name, options in KINDS.items()}


@pytest.fixture(scope="module")
def native(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("native") / "flux.safetensors"
    return write_native(path, original, {"title": "mine", "note": "\u00fc"})


@pytest.fixture(scope="module")
def folder(model, original, tmp_path_factory):
    del original  # made of the model before anything is put on it
    return write_folder(tmp_path_factory.mktemp("folder") / "flux", model)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def exact_change(state, name, weight):
    """By definition, in float64; shares nothing with the package but the textbook."""
    layer = state.layers[name]
    factors = {n: t.double() for n, t in layer.tensors.items() if n != "dora_scale"}
    total = weight.double() + textbook_delta(state.kind, factors, layer.alpha, layer.rank)
    if "dora_scale" in layer.tensors:
        lengths = layer.tensors["dora_scale"].double()
        norm = total.square().sum(dim=0 if lengths.shape[0] == 1 else 1, keepdim=True).sqrt()
        total = lengths * total / norm
    return total - weight.double()


@pytest.mark.parametrize("form", ["native", "folder"])
@pytest.mark.parametrize("name", KINDS)
def test_merged_weights_are_base_and_change(name, form, adapters, original, request, tmp_path):
    state = adapters[name]
    target = tmp_path / ("merged" if form == "folder" else "merged.safetensors")
    source = open_base(request.getfixturevalue(form))
    report = merge_into_base(source, [(state, STRENGTH)], target)
    merged = open_base(target)
    assert set(report.losses) == set(state.layers)
    for layer in state.layers:
        weight = original[f"{layer}.weight"]
        change = exact_change(state, layer, weight)
        expected = weight.double() + STRENGTH * change
        error = (merged.weight(layer).double() - expected).norm() / (STRENGTH * change).norm()
        assert error < 1e-6, layer
        # In float32 nothing but its rounding is lost, and the report says so.
        assert report.losses[layer].error == pytest.approx(float(error), abs=1e-6)
        assert report.losses[layer].kept == pytest.approx(1.0, abs=1e-6)
    untouched = set(original) - {f"{layer}.weight" for layer in state.layers}
    assert len(untouched) > 30
    assert all(torch.equal(merged.tensor(n), original[n]) for n in untouched)


def undivided(original, *, dora):
    """A LoKr of fused layers, whose parts begin inside its blocks, and what it should come to."""
    generator = torch.Generator().manual_seed(5)
    layers, expected = {}, {}
    for native, blocks in ((FUSED.removesuffix(".weight"), 4), ("single_blocks.0.linear1", 4)):
        parts = [part.module for part in FLUX.layers.key_map.parts(native)]
        weight = torch.cat([original[f"{module}.weight"] for module in parts])
        rows, columns = weight.shape
        shapes = {"lokr_w1": (blocks, 8), "lokr_w2_a": (rows // blocks, 2)}
        shapes["lokr_w2_b"] = (2, columns // 8)
        tensors = {n: 0.2 * torch.randn(s, generator=generator) for n, s in shapes.items()}
        if dora:
            tensors["dora_scale"] = weight.norm(dim=0, keepdim=True) * 1.1
        layers[native] = LayerState(tensors, 3.0, 2)
        change = exact_change(AdapterState("lokr", layers), native, weight)
        sizes = [len(original[f"{module}.weight"]) for module in parts]
        expected |= dict(zip(parts, change.split(sizes), strict=True))
    return AdapterState("lokr", layers), expected


@pytest.mark.parametrize("form", ["native", "folder"])
@pytest.mark.parametrize("dora", [False, True])
def test_an_undivided_layer_changes_its_parts(form, dora, original, request, tmp_path):
    state, expected = undivided(original, dora=dora)
    target = tmp_path / ("merged" if form == "folder" else "merged.safetensors")
    report = merge_into_base(open_base(request.getfixturevalue(form)), [(state, STRENGTH)], target)
    assert set(report.losses) == set(expected)
    merged = open_base(target)
    for module, change in expected.items():
        found = merged.weight(module).double() - original[f"{module}.weight"].double()
        assert relative(found, STRENGTH * change) < 2e-6, module
    other = AdapterState("lokr", {"double_blocks.7.img_attn.qkv": state.layers[FUSED[:-7]]})
    with pytest.raises(AdapterError, match=r"transformer_blocks\.7\.attn\.to_q.*not in"):
        merge_into_base(open_base(request.getfixturevalue(form)), [(other, 1.0)], tmp_path / "b")


def test_header_and_untouched_tensors_stay_byte_by_byte(model, native, tmp_path):
    state = random_adapter(model, targets="default", kind="lora")
    only = {name: state.layers[name] for name in ["transformer_blocks.0.attn.to_k"]}
    target = tmp_path / "merged.safetensors"
    merge_into_base(open_base(native), [(AdapterState("lora", only), 1.0)], target)
    old, new = native.read_bytes(), target.read_bytes()
    assert len(old) == len(new)
    header = 8 + int.from_bytes(old[:8], "little")
    assert old[:header] == new[:header]
    entries = json.loads(old[8:header])
    entries.pop("__metadata__")
    differing = set()
    for name, entry in entries.items():
        start, end = (header + offset for offset in entry["data_offsets"])
        if old[start:end] != new[start:end]:
            differing.add(name)
            rows = len(old[start:end]) // 3
            assert old[start : start + rows] == new[start : start + rows], "q stays"
            assert old[start + 2 * rows : end] == new[start + 2 * rows : end], "v stays"
    assert differing == {FUSED}


def test_a_folders_other_parts_are_copied_and_its_other_precisions_left_out(
    folder, adapters, tmp_path
):
    extra = folder / "transformer" / "diffusion_pytorch_model.fp16.safetensors"
    save_file({"x": torch.ones(2)}, extra)
    (folder / ".cache").mkdir(exist_ok=True)
    merge_into_base(open_base(folder), [(adapters["lora"], 1.0)], tmp_path / "merged")
    extra.unlink()
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert {p.relative_to(tmp_path / "merged") for p in tmp_path.rglob("*") if p.is_file()} == names
    for name in ("model_index.json", "scheduler/scheduler_config.json"):
        assert digest(folder / name) == digest(tmp_path / "merged" / name)
    index = "transformer/diffusion_pytorch_model.safetensors.index.json"
    assert digest(folder / index) == digest(tmp_path / "merged" / index)
    import diffusers

    kind = getattr(diffusers, FLUX.files.single_file.class_name)
    loaded = kind.from_pretrained(tmp_path / "merged" / "transformer")
    source = open_base(tmp_path / "merged")
    assert all(torch.equal(source.tensor(n), t) for n, t in loaded.state_dict().items())


@pytest.fixture
def scaled(original, tmp_path):
    def make(spelling):
        tensors, metadata = to_scaled(flux_to_native(original), spelling)
        save_file(tensors, tmp_path / f"{spelling}.safetensors", metadata)
        return tmp_path / f"{spelling}.safetensors"

    return make


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("spelling", ["old", "new", "header"])
def test_scaled_weights_are_changed_and_quantised_again(
    spelling, rounding, scaled, adapters, tmp_path
):
    source, target = scaled(spelling), tmp_path / "m.safetensors"
    before = open_base(source)
    report = merge_into_base(before, [(adapters["lora"], 1.0)], target, rounding=rounding)
    after = open_base(target)
    errors, kept = [], []
    for layer, loss in report.losses.items():
        weight = before.weight(layer)
        change = exact_change(adapters["lora"], layer, weight)
        real = after.weight(layer).double() - weight.double()
        assert relative(real, change) == pytest.approx(loss.error, abs=1e-5)
        assert loss.kept == pytest.approx(
            float((real * change).sum() / change.norm() ** 2), abs=1e-5
        )
        errors.append(loss.error)
        kept.append(loss.kept)
    assert report.stored == ("bfloat16", "float8_e4m3fn")
    assert 0.02 < statistics.median(errors) < 0.4
    assert statistics.median(kept) == pytest.approx(1.0, abs=0.02)
    # Of what is beside the weights only those scales change that do not fit any more.
    old, new = load_file(source), load_file(target)
    scales = {name for name in old if name.endswith(("scale_weight", "weight_scale"))}
    changed = {name for name in scales if not torch.equal(old[name], new[name])}
    assert changed, "the adapter is large"
    assert all(torch.equal(new[name], 2 * old[name]) for name in changed)
    weights = {f"{layer}.weight" for layer in before.modules}
    assert set(old) == set(new)
    assert len(report.rescaled) < len(weights)


def test_strength_zero_leaves_every_byte(scaled, native, adapters, tmp_path):
    for source in (native, scaled("new"), scaled("old")):
        report = merge_into_base(
            open_base(source), [(adapters["dora input"], 0.0)], tmp_path / "m.safetensors"
        )
        assert digest(tmp_path / "m.safetensors") == digest(source)
        assert {(loss.error, loss.kept) for loss in report.losses.values()} == {(0.0, 1.0)}


def test_another_number_format_for_all_weights(scaled, adapters, tmp_path):
    source = scaled("header")
    target = tmp_path / "m.safetensors"
    before = open_base(source)
    report = merge_into_base(before, [(adapters["lora"], 1.0)], target, dtype="bf16")
    after = open_base(target)
    assert report.stored == ("bfloat16",)
    assert max(loss.error for loss in report.losses.values()) < 0.02
    assert sorted(after.names) == sorted(before.names)
    with safe_open(target, "pt") as file:
        assert "_quantization_metadata" not in (file.metadata() or {})
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    for name in before.names:
        layer = name.removesuffix(".weight")
        expected = before.tensor(name).double()
        if layer in report.losses:
            expected += exact_change(adapters["lora"], layer, before.tensor(name))
        assert relative(after.tensor(name).double(), expected) < 0.004, name


def refused(error, base, state, target, words, **options):
    with pytest.raises(error, match=words):
        merge_into_base(open_base(base), [(state, 1.0)], target, **options)
    assert not target.exists()
    assert not [path for path in target.parent.iterdir() if path.name.startswith(".writing")]


def test_adapters_that_do_not_fit_are_refused_before_anything_is_written(
    adapters, native, folder, tmp_path
):
    lora = adapters["lora"]
    first = next(iter(lora.layers.values()))
    foreign = AdapterState("lora", {"transformer_blocks.7.attn.to_q": first})
    wrong = AdapterState("lora", {**lora.layers, "proj_out": lora.layers["x_embedder"]})
    for base, name in ((native, "m.safetensors"), (folder, "m")):
        refused(AdapterError, base, foreign, tmp_path / name, "transformer_blocks.7.attn.to_q")
        refused(AdapterError, base, wrong, tmp_path / name, r"proj_out: a lora of")


def test_a_value_that_is_not_finite_stops_everything(adapters, native, folder, tmp_path):
    layer = adapters["lora"].layers["proj_out"]
    tensors = {**layer.tensors, "lora_up": torch.full_like(layer.tensors["lora_up"], 1e6)}
    state = AdapterState("lora", {"proj_out": LayerState(tensors, layer.alpha, layer.rank)})
    refused(NonFiniteError, native, state, tmp_path / "m.safetensors", "in float16", dtype="fp16")
    refused(NonFiniteError, folder, state, tmp_path / "m", "in float16", dtype="fp16")
    tensors["lora_up"] = torch.full_like(tensors["lora_up"], float("inf"))
    refused(NonFiniteError, native, state, tmp_path / "m.safetensors", "the adapter's change")
