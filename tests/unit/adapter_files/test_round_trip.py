"""What is written is read back, in every layout and kind."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.adapter_states import KEY_MAP, SIZES, STATES, make_state
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.metadata import RunInfo, adapter_metadata
from trainer_core.adapter_files.names.key_map import KeyMap
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.errors import AdapterError, NonFiniteError
from trainer_core.types import AdapterState


def assert_same_deltas(read, state, tolerance=0.0):
    assert set(read.layers) == set(state.layers)
    for name, layer in state.layers.items():
        found = layer_delta(read.kind, read.layers[name])
        assert relative(found, layer_delta(state.kind, layer)) <= tolerance


@pytest.mark.parametrize("case", STATES)
def test_comfyui_layout_returns_the_very_same_state(case, tmp_path):
    state, path = STATES[case], tmp_path / "a.safetensors"
    metadata = adapter_metadata(state, RunInfo("tiny", 10), "shareable")
    write_adapter(path, state, "comfyui", KEY_MAP, metadata)
    read = read_adapter(path, KEY_MAP)
    assert read.kind == state.kind
    assert read.settings == state.settings
    assert set(read.layers) == set(state.layers)
    for name, layer in state.layers.items():
        assert (read.layers[name].alpha, read.layers[name].rank) == (layer.alpha, layer.rank)
        assert set(read.layers[name].tensors) == set(layer.tensors)
        for factor, tensor in layer.tensors.items():
            assert torch.equal(read.layers[name].tensors[factor], tensor)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 1.5e-2), ("fp16", 2e-3)])
def test_other_dtypes_round_the_factors_but_not_alpha(dtype, tolerance, tmp_path):
    state, path = make_state("lora", alpha=0.3), tmp_path / "a.safetensors"
    write_adapter(path, state, "comfyui", KEY_MAP, {}, dtype)
    tensors = load_file(path)
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    for key, tensor in tensors.items():
        assert tensor.dtype == (torch.float32 if key.endswith(".alpha") else wanted)
    assert_same_deltas(read_adapter(path, KEY_MAP), state, tolerance)


def test_lokr_alpha_is_what_readers_divide_by_their_own_rank(tmp_path):
    path = tmp_path / "a.safetensors"
    write_adapter(path, STATES["lokr full"], "comfyui", KEY_MAP, {})
    assert load_file(path)["diffusion_model.head.alpha"].item() == 2.0  # = rank: scale 1
    write_adapter(path, STATES["lokr both"], "comfyui", KEY_MAP, {})
    tensors = load_file(path)
    rank = tensors["transformer.blocks.0.attn.to_q.lokr_w2_b"].shape[0]
    assert tensors["transformer.blocks.0.attn.to_q.alpha"].item() / rank == 3.0


@pytest.mark.parametrize("alpha", [None, 0.0])
def test_alpha_that_is_absent_or_zero_means_rank(alpha, tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "diffusion_model.head.lora_down.weight": torch.randn(2, 12),
        "diffusion_model.head.lora_up.weight": torch.randn(9, 2),
    }
    if alpha is not None:
        tensors["diffusion_model.head.alpha"] = torch.tensor(alpha)
    save_file(tensors, path)
    layer = read_adapter(path, KEY_MAP).layers["head"]
    assert (layer.alpha, layer.rank) == (2.0, 2)


@pytest.mark.parametrize("layout", ["comfyui", "diffusers"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_never_written(layout, value, tmp_path):
    state, path = make_state("lora"), tmp_path / "a.safetensors"
    state.layers["head"].tensors["lora_up"][1, 1] = value
    with pytest.raises(NonFiniteError, match=r"head\.lora_(up|B)\.weight"):
        write_adapter(path, state, layout, KEY_MAP, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("state", "layout", "dtype", "message"),
    [
        (STATES["lora"], "sdxl", "fp32", "layout 'sdxl'"),
        (STATES["lora"], "comfyui", "int8", "'int8'"),
        (AdapterState("lora", {}), "comfyui", "fp32", "without layers"),
        (make_state("lora", sizes={"foreign": (4, 4)}), "comfyui", "fp32", "'foreign' has no"),
    ],
)
def test_what_cannot_be_written_is_refused(state, layout, dtype, message, tmp_path):
    with pytest.raises(AdapterError, match=message):
        write_adapter(tmp_path / "a.safetensors", state, layout, KEY_MAP, {}, dtype)


@pytest.mark.parametrize("case", STATES)
@pytest.mark.parametrize("layout", ["comfyui", "diffusers"])
def test_inspect_reports_kind_ranks_and_norms(case, layout, tmp_path):
    state, path = STATES[case], tmp_path / "a.safetensors"
    facts = RunInfo("qwen_image", 10, hashes={"base": "ab" * 32})
    write_adapter(path, state, layout, KEY_MAP, adapter_metadata(state, facts, "shareable"), "bf16")
    report = inspect_adapter(path, KEY_MAP)
    assert report.kind == ("lora" if layout == "diffusers" and state.kind == "loha" else state.kind)
    assert report.layout == layout
    assert report.dtypes == ("bfloat16",)
    assert report.family == "qwen_image"
    assert report.base == "ab" * 32
    assert report.unknown == ()
    assert report.size == path.stat().st_size
    assert sum(report.ranks.values()) + report.whole == sum(report.scales.values()) == len(SIZES)
    for name, layer in state.layers.items():
        expected = float(layer_delta(state.kind, layer).norm())
        assert report.norms[name] == pytest.approx(expected, rel=2e-2)
    named = inspect_adapter(path).norms
    foreign = KeyMap(lambda _: None, lambda _: None)
    assert inspect_adapter(path, foreign).unknown == tuple(sorted(named))
