"""What is not exact by itself: with the base's weights, approximated on request, or refused."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.adapter_states import make_state
from tests.fixtures.family_states import assert_same, family_state, given_file, key_map
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.write.write_adapter import layout_name, write_adapter
from trainer_core.adapter_files.write.write_plan import Options
from trainer_core.errors import AdapterError, InputError, NonFiniteError
from trainer_core.types import AdapterState

FLUX, QWEN = key_map("flux"), key_map("qwen_image")
QKV = "double_blocks.0.img_attn.qkv"


def with_extras(path, **extras):
    tensors = load_file(path)
    save_file({**tensors, **extras}, path)


def test_differences_that_are_no_factors_are_kept_refused_or_dropped(tmp_path):
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    state = family_state("flux", "lora")
    write_adapter(source, state, "comfyui", FLUX, {})
    bias = torch.randn(36)
    with_extras(source, **{f"diffusion_model.{QKV}.diff_b": bias})
    report = convert(source, target, "kohya", FLUX)
    assert report.dropped == ()
    assert torch.equal(load_file(target)["lora_unet_double_blocks_0_img_attn_qkv.diff_b"], bias)
    assert torch.equal(read_adapter(target, FLUX).extras[QKV]["diff_b"], bias)
    for layout in ("diffusers", "lycoris", "peft"):
        with pytest.raises(AdapterError, match=rf"{QKV}\.diff_b") as error:
            convert(source, tmp_path / layout_name("c", layout), layout, FLUX)
        assert "--extras drop" in error.value.remedy
    report = convert(source, tmp_path / "c.safetensors", "diffusers", FLUX, extras="drop")
    assert report.dropped == (f"{QKV}.diff_b",)
    assert_same(read_adapter(tmp_path / "c.safetensors", FLUX), state)


def test_factors_beside_a_difference_of_the_same_weight_are_refused(tmp_path):
    """ComfyUI would keep the difference and pass over the factors."""
    state = family_state("flux", "lora")
    for native, options in (("final_layer.linear", {}), (QKV, {"options": Options(fused=True)})):
        both = AdapterState("lora", state.layers, {}, {native: {"diff": torch.zeros(8, 12)}})
        with pytest.raises(AdapterError, match=f"{native} has factors and"):
            write_adapter(tmp_path / "a.safetensors", both, "comfyui", FLUX, {}, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_scale_that_overflows_the_files_format_is_written_in_more_bits(tmp_path):
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    state = make_state("lora", alpha=4000.0, sizes={"proj_out": (12, 8)})
    state.layers["proj_out"].tensors["lora_up"][0, 0] = 60.0
    write_adapter(source, state, "comfyui", QWEN, {}, "fp16")
    report = convert(source, target, "diffusers", QWEN)
    assert "fp32" in report.notes[0]
    assert {t.dtype for t in load_file(target).values()} == {torch.float32}
    with pytest.raises(NonFiniteError):
        convert(source, tmp_path / "c.safetensors", "diffusers", QWEN, dtype="fp16")
    assert not (tmp_path / "c.safetensors").exists()


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ("sdxl", {}, "'sdxl'"),
        ("comfyui", {"rank": 4}, "without an approximation"),
        ("comfyui", {"approximate": "lora", "rank": 0}, "rank of 0"),
        ("comfyui", {"approximate": "lora"}, "rank that is not given"),
        ("diffusers", {"fused": True}, "fused with layout"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(layout, options, message, tmp_path):
    source, _ = given_file(tmp_path, "qwen_image", "lokr")
    with pytest.raises(AdapterError, match=message) as error:
        convert(source, tmp_path / "b.safetensors", layout, QWEN, **options)
    assert error.value.remedy
    assert not (tmp_path / "b.safetensors").exists()


def test_a_peft_folder_is_replaced_and_other_files_in_it_stay(tmp_path):
    source, state = given_file(tmp_path, "qwen_image", "lora")
    folder = tmp_path / "peft"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    convert(source, folder, "peft", QWEN)
    with pytest.raises(InputError, match="is there already"):
        convert(source, folder, "peft", QWEN)
    convert(source, folder, "peft", QWEN, dtype="bf16", overwrite=True)
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    back = tmp_path / "back.safetensors"
    convert(folder, back, "lycoris", QWEN, dtype="fp32")
    assert_same(read_adapter(back, QWEN), state, 1e-2)
    for same in (folder, folder / "x" / ".."):
        with pytest.raises(InputError, match="both what is read"):
            convert(folder, same, "peft", QWEN, overwrite=True)
