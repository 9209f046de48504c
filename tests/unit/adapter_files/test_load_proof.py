"""The load proof without ComfyUI: fine files are fine, and what is spoiled is named."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.combinations import pairwise
from tests.fixtures.family_states import family_state, key_map
from trainer_core.adapter_files.verify.load_proof import adapter_shapes, prove, require_loadable
from trainer_core.adapter_files.write import write_adapter as writing
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapter_files.write.write_plan import Options
from trainer_core.errors import RunError
from trainer_core.types import AdapterState, LayerState

FLUX, QWEN = key_map("flux"), key_map("qwen_image")
MAPS = {"flux": FLUX, "qwen_image": QWEN}
CASES = ("lora", "loha", "lokr", "lokr full", "lokr both", "lora input", "loha input", "lokr input")
OUT = "diffusion_model.double_blocks.0.img_attn.proj"
QUERY, KEY = (f"transformer.transformer_blocks.0.attn.to_{name}" for name in "qk")


def write(folder, state, layout="comfyui", family="flux", dtype="fp32", **options):
    path = folder / f"{layout}.safetensors"
    write_adapter(path, state, layout, MAPS[family], {}, dtype, Options(**options), proof=False)
    return path


@pytest.mark.parametrize(
    ("family", "layout", "case"), pairwise(MAPS, ["comfyui", "lycoris"], CASES)
)
def test_every_tensor_of_our_files_is_loaded_as_it_is_meant(family, layout, case, tmp_path):
    state = family_state(family, case)
    path = write(tmp_path, state, layout, family)
    for given in (state, None):
        proof = prove(path, MAPS[family], state=given)
        assert proof.ok, list(proof.problems())
        assert set(proof.tensors) == set(load_file(path))
        assert set(proof.layers) == set(state.layers)
        assert proof.largest < 1e-7
        assert not proof.unread


def spoil(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def renamed(begin, other):
    """Every key that begins so gets another beginning."""

    def change(tensors):
        for key in [key for key in tensors if key.startswith(begin)]:
            tensors[other + key.removeprefix(begin)] = tensors.pop(key)

    return change


def dropped(begin):
    def change(tensors):
        for key in [key for key in tensors if key.startswith(begin)]:
            del tensors[key]

    return change


def put(key, value):
    return lambda tensors: tensors.update({key: value})


def exchange(tensors):
    for factor in ("lora_up", "lora_down"):
        first, second = f"{QUERY}.{factor}.weight", f"{KEY}.{factor}.weight"
        tensors[first], tensors[second] = tensors[second], tensors[first]


def add(tensors):
    other = "diffusion_model.double_blocks.0.txt_attn.proj"
    for key in [key for key in tensors if key.startswith(OUT)]:
        tensors[key.replace(OUT, other)] = tensors[key].clone()


rename = renamed(f"{OUT}.lora_up", f"{OUT}x.lora_up")
NORM = "diffusion_model.double_blocks.0.img_attn.norm.key_norm.diff"
PROJECTION = "differs: transformer_blocks.0.attn.to_out.0: by "
SPOILED = {
    # How the file is spoiled, and how the first problems begin.
    "renamed": (rename, [f"ignored: {OUT}.lora_down.weight", f"ignored: {OUT}x.lora_up.weight"]),
    "twice the alpha": (put(f"{OUT}.alpha", torch.tensor(6.0)), [f"{PROJECTION}1 of"]),
    "without alpha": (dropped(f"{OUT}.alpha"), [f"{PROJECTION}0.33 of"]),
    "exchanged": (exchange, [f"differs: transformer_blocks.0.attn.to_{name}" for name in "qk"]),
    "without a layer": (dropped(OUT), [f"{PROJECTION}1 of"]),
    "one more": (add, ["ignored: diffusion_model.double_blocks.0.txt_attn.proj"]),
    "a norm": (put(NORM, torch.ones(12)), [f"ignored: {NORM}"]),
    "lengths of rows": (put(f"{OUT}.dora_scale", torch.ones(12, 1)), [f"read wrongly: {OUT}."]),
    "lengths of columns": (put(f"{OUT}.dora_scale", torch.ones(1, 12)), [f"{PROJECTION}1 of"]),
    "cut": (put(f"{OUT}.lora_up.weight", torch.ones(6, 2)), [f"wrong shape: {OUT}."]),
    "half a layer": (dropped(f"{OUT}.lora_down"), [f"read wrongly: {OUT}."]),
    "a part's bias": (put(f"{QUERY}.diff_b", torch.ones(12)), [f"ignored: {QUERY}.diff_b"]),
    "spelt for PEFT": (
        renamed(OUT, f"base_model.model.{OUT}"),
        [f"ignored: base_model.model.{OUT}"],
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_file_is_refused_and_says_why(case, tmp_path):
    change, begins = SPOILED[case]
    state = family_state("flux", "lora")
    path = write(tmp_path, state)
    require_loadable(path, state, FLUX)
    spoil(path, change)
    proof = prove(path, FLUX, state=state)
    problems = list(proof.problems())
    for begin in begins:
        assert any(line.startswith(begin) for line in problems), problems
    assert not proof.ok
    with pytest.raises(RunError) as error:
        require_loadable(path, state, FLUX)
    assert problems[0] in error.value.found


def test_an_alpha_of_nought_is_rank_for_us_and_nothing_for_comfyui(tmp_path):
    path = write(tmp_path, family_state("flux", "lora"))
    spoil(path, put(f"{OUT}.alpha", torch.tensor(0.0)))
    (problem,) = prove(path, FLUX).problems()
    assert problem.startswith("differs: transformer_blocks.0.attn.to_out.0: by 1 of")


def test_a_difference_that_is_no_factor_is_compared_too(tmp_path):
    state = family_state("flux", "lora")
    extras = {
        "double_blocks.0.img_attn.norm.query_norm": {"diff": torch.randn(12)},
        "double_blocks.0.img_attn.proj": {"diff_b": torch.randn(12)},
    }
    state = replace(state, extras=extras)
    path = write(tmp_path, state)
    assert prove(path, FLUX, state=state).ok
    extras["double_blocks.0.img_attn.proj"]["diff_b"] += 0.1
    (problem,) = prove(path, FLUX, state=state).problems()
    assert problem.startswith("differs: double_blocks.0.img_attn.proj.bias")
    without = replace(state, extras={})
    found = [line.partition(":")[0] for line in prove(path, FLUX, state=without).problems()]
    assert "differs" in found


@pytest.fixture
def faulty_layout(monkeypatch):
    """Layout comfyui as a fault of ours could make it."""

    def spoil(change):
        own = writing.LAYOUTS["comfyui"]

        def plan(state, names, options):
            made = own(state, names, options)
            pieces = [
                replace(
                    piece,
                    outlines=lambda piece=piece: change(piece.outlines()),
                    tensors=lambda piece=piece: change(piece.tensors()),
                )
                for piece in made.pieces
            ]
            return replace(made, pieces=tuple(pieces))

        monkeypatch.setattr(writing, "LAYOUTS", {**writing.LAYOUTS, "comfyui": plan})

    return spoil


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {key.replace("img_attn.", "image_attn."): t for key, t in tensors.items()},
        lambda tensors: {k: t * 2 if k.endswith(".alpha") else t for k, t in tensors.items()},
    ],
)
def test_a_file_that_comfyui_would_not_load_gets_no_name(change, faulty_layout, tmp_path):
    state = family_state("flux", "lora")
    path = tmp_path / "a.safetensors"
    write_adapter(path, state, "comfyui", FLUX, {})
    before = path.read_bytes()
    faulty_layout(change)
    with pytest.raises(RunError, match="ComfyUI would not load"):
        write_adapter(path, state, "comfyui", FLUX, {})
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]
    write_adapter(path, state, "comfyui", FLUX, {}, proof=False)
    assert path.read_bytes() != before


@pytest.mark.parametrize("size", [1e-9, 3e-8])
def test_a_change_that_the_format_loses_is_no_rounding(size, tmp_path):
    """Of the factors nothing is left in the first file, and too little in the second."""
    down, up = (torch.randn(4, 12) * size, torch.randn(4, 12).T.contiguous())
    layer = LayerState({"lora_down": down, "lora_up": up}, 4.0, 4)
    state = AdapterState("lora", {"transformer_blocks.0.attn.to_out.0": layer})
    path = tmp_path / "a.safetensors"
    half = {"lora_down.weight": down.half(), "lora_up.weight": up.half()}
    save_file({f"{OUT}.{name}": tensor for name, tensor in half.items()}, path)
    with pytest.raises(RunError, match="are lost in float16") as error:
        require_loadable(path, state, FLUX)
    assert "bf16" in error.value.remedy
    extras = {"img_in": {"diff": down}}
    save_file({"diffusion_model.img_in.diff": down.half()}, path)
    with pytest.raises(RunError, match="are lost in float16"):
        require_loadable(path, AdapterState("lora", {}, {}, extras), FLUX)


def test_with_a_base_its_names_and_shapes_count(tmp_path):
    state = family_state("flux", "lora")
    path = write(tmp_path, state)
    own = adapter_shapes(state, FLUX)
    require_loadable(path, state, FLUX, shapes=own)
    for wrong in (
        {name: (shape[0] * 2, *shape[1:]) for name, shape in own.items()},
        {name: shape for name, shape in own.items() if not name.startswith("single_blocks.3.")},
    ):
        with pytest.raises(RunError) as error:
            require_loadable(path, state, FLUX, shapes=wrong)
        assert "Choose the base" in error.value.remedy


def test_an_untrained_adapter_may_be_kept_and_is_not_fine(tmp_path):
    state = family_state("flux", "lora")
    for layer in state.layers.values():
        layer.tensors["lora_up"].zero_()
    path = tmp_path / "a.safetensors"
    write_adapter(path, state, "comfyui", FLUX, {})
    proof = prove(path, FLUX)
    assert proof.loads
    assert not proof.ok
    assert len(proof.still) == len(state.layers)
    (problem,) = proof.problems()
    assert problem.startswith("changes nothing")
