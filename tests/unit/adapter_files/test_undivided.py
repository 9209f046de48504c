"""A fused layer whose parts no factors of its kind are stays whole; its rows can be computed."""

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.peer_files import (
    FLUX_LINEAR1,
    FLUX_QKV,
    FLUX_TEXT,
    IN,
    ROWS,
    Draw,
    delta,
    number,
    one,
)
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.factors.effective_delta import SlicedRows
from trainer_core.adapter_files.names.layer_match import RowSlice
from trainer_core.adapter_files.read.read_adapter import open_adapter, read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.write_adapter import layout_name
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.errors import AdapterError
from trainer_core.families.registry import FAMILIES
from trainer_core.types import LayerState

FLUX = FAMILIES["flux"].layers.key_map
QKV, TEXT, LINEAR1, LAST = (
    "double_blocks.3.img_attn.qkv",
    "double_blocks.3.txt_attn.qkv",
    "single_blocks.11.linear1",
    "final_layer.adaLN_modulation.1",
)
PARTS = {QKV: FLUX_QKV, TEXT: FLUX_TEXT, LINEAR1: FLUX_LINEAR1, LAST: ("norm_out.linear",)}
HEIGHTS = {QKV: 3 * ROWS, TEXT: 3 * ROWS, LINEAR1: 7 * ROWS, LAST: 2 * ROWS}
SPELLINGS = {
    "comfyui": "diffusion_model.{}".format,
    "kohya": lambda native: f"lora_unet_{native.replace('.', '_')}",
    "lycoris": lambda native: f"lycoris_{native.replace('.', '_')}",
}
"""Of ComfyUI's Train LoRA, of kohya's scripts and musubi-tuner, of LyCORIS on native names."""

FORMS = ("whole", "low-rank second", "both low-rank")


def factors(native, form, seed=0):
    """A LoKr whose first factor has 4 rows (of the last norm 1), so that parts begin in blocks."""
    draw, rows, blocks = Draw(seed), HEIGHTS[native], 1 if native == LAST else 4
    first = {"lokr_w1": draw(blocks, 3)}
    if form == "both low-rank":
        first = {"lokr_w1_a": draw(blocks, 2), "lokr_w1_b": draw(2, 3)}
    if form == "whole":
        return {**first, "lokr_w2": draw(rows // blocks, IN // 3)}
    return {**first, "lokr_w2_a": draw(rows // blocks, 2), "lokr_w2_b": draw(2, IN // 3)}


def make_file(path, layout, form="low-rank second", natives=tuple(PARTS)):
    """A file with these layers and one that is a module; returns the fused layers' deltas."""
    deltas, tensors = {}, {}
    for seed, native in enumerate(natives):
        name, own = SPELLINGS[layout](native), factors(native, form, seed)
        tensors |= {f"{name}.{factor}": tensor for factor, tensor in own.items()}
        tensors[f"{name}.alpha"] = number(3.0)
        deltas[native] = delta("lokr", own, 3.0, 2)
    other = one(SPELLINGS[layout]("img_in"), "x_embedder", "flux", layout, "lokr whole")
    save_file({**tensors, **other.tensors}, path)
    return deltas


def parts_of(deltas):
    """Module to its rows of the deltas; the last norm's halves are exchanged."""
    found = {}
    for native, whole in deltas.items():
        if native == LAST:
            found["norm_out.linear"] = torch.cat([*reversed(whole.chunk(2))])
            continue
        sizes = [ROWS * (4 if name.endswith("proj_mlp") else 1) for name in PARTS[native]]
        found |= dict(zip(PARTS[native], whole.split(sizes), strict=True))
    return found


def double_delta(kind, layer):
    doubled = {name: tensor.double() for name, tensor in layer.tensors.items()}
    return layer_delta(kind, LayerState(doubled, layer.alpha, layer.rank))


def assert_means(path, deltas, tolerance=1e-6):
    """Compare a file with deltas by module, whatever kind it is of."""
    state = read_adapter(path, FLUX)
    for module, wanted in deltas.items():
        assert relative(double_delta(state.kind, state.layers[module]), wanted) < tolerance, module
    return state


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", SPELLINGS)
def test_a_lokr_that_no_parts_have_is_read_whole(layout, form, tmp_path):
    path = tmp_path / "a.safetensors"
    deltas = make_file(path, layout, form)
    state = assert_means(path, deltas)
    assert set(state.layers) == {*PARTS, "x_embedder"}
    report = inspect_adapter(path, FLUX)
    assert report.unknown == ()
    with open_adapter(path, FLUX) as adapter:
        assert all(t.is_meta for t in adapter.outline(QKV).tensors.values())


@pytest.mark.parametrize("layout", ["diffusers", "peft"])
def test_layouts_of_modules_refuse_it_and_name_the_way(layout, tmp_path):
    make_file(tmp_path / "a.safetensors", "comfyui", natives=(QKV,))
    target = tmp_path / layout_name("b", layout)
    with pytest.raises(AdapterError, match=rf"{QKV} \(lokr\).*begin inside blocks") as caught:
        convert(tmp_path / "a.safetensors", target, layout, FLUX)
    assert all(module in caught.value.found for module in FLUX_QKV)
    assert "--approximate lora --rank N" in caught.value.remedy
    with pytest.raises(AdapterError, match=FLUX_QKV[0]) as caught:
        convert(tmp_path / "a.safetensors", target, layout, FLUX, approximate="lora")
    # q has rows of two blocks: two rows of the first factor, times rank 2.
    assert "4 would be without error" in caught.value.expected
    assert not target.exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["comfyui", "diffusers", "peft", "kohya", "lycoris"])
def test_as_a_lora_every_part_is_exact_where_the_rank_allows(layout, form, tmp_path):
    path, target = tmp_path / "a.safetensors", tmp_path / layout_name("b", layout)
    parts = parts_of(make_file(path, "comfyui", form))
    report = convert(path, target, layout, FLUX, approximate="lora", rank=16)
    assert report.exact
    assert set(report.errors) == {*parts, "x_embedder"}
    assert_means(target, parts, 2e-6)


@pytest.mark.parametrize("ranges", [((0, 1),), ((1, 2),), ((3, 7),), ((4, 7), (0, 2))])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_kronecker_product_are_those_of_the_textbook(form, ranges):
    own = {name: tensor.double() for name, tensor in factors(LINEAR1, form).items()}
    rows = SlicedRows("lokr", LayerState(own, 3.0, 2), RowSlice(ranges, 7))
    whole = delta("lokr", own, 3.0, 2)
    wanted = torch.cat([whole[ROWS * start : ROWS * stop] for start, stop in ranges])
    up, down = rows.product()
    assert relative(up @ down, wanted) < 1e-12
    assert relative(rows.delta(), wanted) < 1e-12
    assert rows.sizes == tuple(wanted.shape)
    assert up.shape[1] == rows.product_rank
    assert torch.linalg.matrix_rank(wanted) <= rows.full_rank


# DoRA of a fused layer's columns, of any kind.


def with_lengths(path, kind):
    rows = 3 * ROWS
    own = factors(QKV, "low-rank second") if kind == "lokr" else Draw(4).factors(kind, rows)
    endings = {"lora_up": "lora_up.weight", "lora_down": "lora_down.weight"}
    name = f"lora_unet_{QKV.replace('.', '_')}"
    lengths = Draw(5)(1, IN).abs() + 0.5
    tensors = {f"{name}.{endings.get(factor, factor)}": t for factor, t in own.items()}
    save_file({**tensors, f"{name}.alpha": number(3.0), f"{name}.dora_scale": lengths}, path)
    return delta(kind, own, 3.0, 2), lengths


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_dora_of_a_fused_layer_is_a_lora_with_the_base(kind, tmp_path):
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    change, lengths = with_lengths(path, kind)
    weights = {name: Draw(seed)(ROWS, IN) for seed, name in enumerate(FLUX_QKV, 20)}
    whole = torch.cat([*weights.values()]).double()
    trained = whole + change
    wanted = lengths.double() * trained / trained.norm(dim=0, keepdim=True) - whole
    options = {"approximate": "lora", "weight_of": weights.__getitem__, "rank": IN}
    assert convert(path, target, "diffusers", FLUX, **options).exact
    assert_means(target, dict(zip(FLUX_QKV, wanted.split(ROWS), strict=True)), 2e-6)
