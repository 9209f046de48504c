"""OFT in files: what is read as it is meant, BOFT of one turn, and what is refused."""

import math

import pytest
import torch
from fixtures.family_states import SIZES, assert_same, family_state, key_map, random_weights
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.factors.effective_delta import effective_delta
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.verify.load_proof import prove
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapter_files.write.write_plan import Options
from trainer_core.errors import AdapterFileError, InputError

FLUX = key_map("flux")
OUT = "transformer_blocks.0.attn.to_out.0"
KEY = "diffusion_model.double_blocks.0.img_attn.proj"


def write(folder, state, layout="comfyui", **options):
    path = folder / f"{layout}.safetensors"
    write_adapter(path, state, layout, FLUX, {}, "fp32", Options(**options))
    return path


def boft(weight, blocks, alpha=0.0):
    """What LyCORIS and ComfyUI compute, step by step as they do."""
    skew = blocks - blocks.mT
    length = skew.norm()
    if alpha and length > alpha:
        skew = skew * alpha / length
    identity = torch.eye(blocks.shape[-1], dtype=blocks.dtype)
    turned, size = weight, blocks.shape[-1]
    for step, each in enumerate((identity + skew) @ torch.linalg.inv(identity - skew)):
        far = 2**step * (size // 2)
        turned = turned.unflatten(0, (-1, 2, far)).transpose(1, 2).flatten(0, 2)
        turned = torch.einsum("bij,bj...->bi...", each, turned.unflatten(0, (-1, size)))
        turned = turned.flatten(0, 1).unflatten(0, (-1, far, 2)).transpose(1, 2).flatten(0, 2)
    return turned


def test_the_file_has_what_comfyui_reads(tmp_path):
    tensors = load_file(write(tmp_path, family_state("flux", "oft")))
    assert tensors[f"{KEY}.oft_blocks"].shape == (6, 2, 2)
    assert tensors[f"{KEY}.alpha"] == 0.0
    assert {key.rsplit(".", 1)[1] for key in tensors} == {"oft_blocks", "alpha"}
    report = inspect_adapter(tmp_path / "comfyui.safetensors", FLUX)
    assert (report.kind, report.ranks, report.notes) == ("oft", {2: len(SIZES["flux"])}, ())
    assert all(norm > 0 for norm in report.norms.values())


@pytest.mark.parametrize("layout", ["comfyui", "kohya"])
def test_a_layout_proves_and_a_changed_file_does_not(layout, tmp_path):
    state = family_state("flux", "oft")
    path = write(tmp_path, state, layout)
    assert prove(path, FLUX, state=state).ok
    tensors = load_file(path)
    key = next(key for key in tensors if key.endswith("oft_blocks"))
    save_file({**tensors, key: tensors[key].mT.contiguous()}, path)
    assert not prove(path, FLUX, state=state).ok


def test_exchanged_halves_are_written_as_comfyui_has_them(tmp_path):
    """By the module's name ComfyUI would exchange the rows that are added, not those it rotates."""
    state = family_state("flux", "oft")
    blocks = load_file(write(tmp_path, state))[
        "diffusion_model.final_layer.adaLN_modulation.1.oft_blocks"
    ]
    own = state.layers["norm_out.linear"].tensors["oft_blocks"].view(12, 2, 2)
    assert torch.equal(blocks, own.roll(6, 0))
    path = write(tmp_path, state, "lycoris")
    proof = prove(path, FLUX, state=state)
    assert [name for name, layer in proof.layers.items() if not layer.ok] == ["norm_out.linear"]
    done = convert(path, tmp_path / "a.safetensors", "lycoris", FLUX)
    assert any("other way round" in note for note in done.notes)


def test_a_boft_of_one_turn_is_an_oft(tmp_path):
    blocks, weight = torch.randn(1, 3, 4, 4).double(), torch.randn(12, 12).double()
    path = tmp_path / "a.safetensors"
    save_file({f"{KEY}.oft_blocks": blocks, f"{KEY}.alpha": torch.tensor(0.0)}, path)
    state = read_adapter(path, FLUX)
    found = effective_delta("oft", state.layers[OUT], weight)
    assert (found - (boft(weight, blocks) - weight)).norm() < 1e-10
    assert prove(path, FLUX).ok
    convert(path, tmp_path / "b.safetensors", "comfyui", FLUX)
    assert_same(read_adapter(tmp_path / "b.safetensors", FLUX), state)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"oft_blocks": torch.randn(2, 3, 4, 4)}, "not squares"),
        ({"oft_blocks": torch.randn(3, 4, 2)}, "not squares"),
        ({"oft_blocks": torch.randn(3, 4, 4), "rescale": torch.ones(12, 1)}, "rescale"),
        ({"oft_R.weight": torch.randn(3, 6)}, "PEFT's OFT"),
    ],
)
def test_what_means_something_else_is_refused(tensors, message, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({f"{KEY}.{name}": tensor for name, tensor in tensors.items()}, path)
    with pytest.raises(AdapterFileError, match=message):
        read_adapter(path, FLUX)


def test_a_limit_that_does_nothing_is_passed_over_and_another_is_refused(tmp_path):
    blocks = torch.randn(3, 4, 4)
    length = float((blocks - blocks.mT).norm())
    path = tmp_path / "a.safetensors"
    for alpha, fits in ((length * 1.01, True), (length * 0.99, False)):
        save_file({f"{KEY}.oft_blocks": blocks, f"{KEY}.alpha": torch.tensor(alpha)}, path)
        if fits:
            assert read_adapter(path, FLUX).layers[OUT].rank == 4
            assert prove(path, FLUX).ok
        else:
            with pytest.raises(AdapterFileError, match=r"limits a rotation[\s\S]*LyCORIS"):
                read_adapter(path, FLUX)


@pytest.mark.parametrize("layout", ["diffusers", "peft"])
def test_readers_that_rotate_columns_get_a_lora_with_the_base(layout, tmp_path):
    state, weights = family_state("flux", "oft"), random_weights("flux")
    source = write(tmp_path, state)
    target = tmp_path / ("folder" if layout == "peft" else "b.safetensors")
    with pytest.raises(InputError, match=r"rotates the columns[\s\S]*--base PATH"):
        convert(source, target, layout, FLUX)
    with pytest.raises(InputError, match=r"multiplies the base's weight[\s\S]*--base PATH"):
        convert(source, target, layout, FLUX, approximate="lora", rank=12)
    done = convert(
        source, target, layout, FLUX, approximate="lora", rank=48, weight_of=weights.__getitem__
    )
    assert (done.kind, max(done.errors.values()) < 1e-5) == ("lora", True)
    lora = read_adapter(target, FLUX)
    for name, weight in weights.items():
        wanted = effective_delta("oft", state.layers[name], weight)
        found = effective_delta("lora", lora.layers[name], weight)
        assert math.isclose(float((found - wanted).norm()), 0.0, abs_tol=1e-4)
