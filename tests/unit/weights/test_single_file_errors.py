"""A file that cannot be a base is refused in three parts, by what is wrong with it."""

import functools
import json
import math

import pytest
import torch
from safetensors.torch import save, save_file

from tests.fixtures.native_files import (
    F8,
    flux_to_native,
    make_native_flux,
    make_native_qwen,
    to_scaled,
)
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family

QKV = "double_blocks.0.img_attn.qkv"
OTHER_FILE = "bf16 or the fp8_scaled file"


@functools.cache
def flux():
    return flux_to_native(make_native_flux(layers=1, single_layers=1).state_dict())


@functools.cache
def qwen():
    return make_native_qwen().state_dict()


def use(path, family="flux"):
    """Everything that a run does with a base before its first step."""
    settings = BaseSection(path=str(path))
    location = locate_base(settings, get_family(family), has_controls=False, needs_encoders=False)
    return get_family(family).load_transformer(location, torch.float32, "cpu")


def refusal(path, family="flux"):
    with pytest.raises(BaseModelError) as error:
        use(path, family)
    assert all((error.value.found, error.value.expected, error.value.remedy))
    assert error.value.exit_code == 2
    return error.value


def write(tmp_path, tensors, metadata=None):
    path = tmp_path / "base.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
    return path


def noted(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def test_the_files_of_these_tests_are_good_before_they_are_spoilt(tmp_path):
    use(write(tmp_path, flux()))
    use(write(tmp_path, qwen()), "qwen_image")
    for spelling in ("old", "new", "header"):
        use(write(tmp_path, *to_scaled(flux(), spelling)))


@pytest.mark.parametrize(
    ("name", "found", "remedy"),
    [
        ("flux1-dev-Q8_0.gguf", "does not begin with GGUF", "one in these formats"),
        ("flux1-dev.ckpt", "ends in .ckpt", ".safetensors file"),
        ("flux1-dev.pth", "ends in .pth", ".safetensors file"),
        ("model_index.json", "ends in .json", ".safetensors file"),
        ("weights", "ends in nothing", ".safetensors file"),
    ],
)
def test_other_kinds_of_files_are_refused(name, found, remedy, tmp_path):
    path = tmp_path / name
    path.write_bytes(save(flux()))
    error = refusal(path)
    assert found in error.found
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_model.double_blocks.0.img_attn.qkv.lora_down.weight",
        "transformer.transformer_blocks.0.attn.to_q.lora_A.weight",
        "lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight",
        "diffusion_model.double_blocks.0.img_attn.qkv.hada_w1_a",
        "diffusion_model.double_blocks.0.img_attn.qkv.lokr_w2",
        "diffusion_model.double_blocks.0.img_attn.qkv.diff",
        "diffusion_model.double_blocks.0.img_attn.qkv.alpha",
    ],
)
def test_an_adapter_is_refused_as_a_base(name, tmp_path):
    error = refusal(write(tmp_path, {name: torch.ones(2, 2)}))
    assert "adapter" in error.found
    assert name in error.found


def put(name, tensor):
    return lambda t: t.update({name: tensor})


def renamed(begin, other):
    return lambda t: t.update({k.replace(begin, other): t.pop(k) for k in [*t] if begin in k})


WEIGHT, BIAS = f"{QKV}.weight", f"{QKV}.bias"
NORM = "double_blocks.0.img_attn.norm.query_norm"
SPOILT = {
    "missing": (lambda t: t.pop(BIAS), "1 tensors are missing, such as .*qkv.bias"),
    "missing size": (lambda t: t.pop("img_in.weight"), "there is no img_in.weight"),
    "unknown": (put("more.weight", torch.ones(1)), "1 tensors are unknown, .*more"),
    "both": (
        renamed("img_in.bias", "img_im.bias"),
        "1 tensors are missing, such as img_in.bias; 1 tensors are unknown, such as img_im.bias",
    ),
    "gap": (renamed("single_blocks.0", "single_blocks.7"), "missing, such as single_blocks.0"),
    "shape": (
        lambda t: t.update({WEIGHT: t[WEIGHT][:-1]}),
        r"qkv.weight has the shape \[383, 128\]",
    ),
    "vector": (put("img_in.weight", torch.ones(3)), r"img_in.weight has the shape \[3\]"),
    "scalar": (put(BIAS, torch.tensor(1.0)), r"qkv.bias has the shape \[\]"),
    "no norm": (put(f"{NORM}.scale", torch.ones(0)), "attention heads have 0 values"),
    "head": (put(f"{NORM}.scale", torch.ones(64)), "attention heads have 64 values"),
    "norm twice": (put(f"{NORM}.weight", torch.ones(128)), "both .* are there"),
    "canny": (put("img_in.weight", torch.ones(128, 128)), "reads 128 values .* Canny"),
    "integers": (lambda t: t.update({WEIGHT: t[WEIGHT].to(torch.int8)}), "stored as I8"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_does_not_fit_is_named(case, tmp_path):
    spoil, found = SPOILT[case]
    tensors = dict(flux())
    spoil(tensors)
    with pytest.raises(BaseModelError, match=f"Found: .*{found}"):
        use(write(tmp_path, tensors))


def scaled(spelling="new", **changes):
    """A good scaled file with some tensors replaced, or taken out where None is given."""
    tensors, metadata = to_scaled(flux(), spelling)
    for suffix, value in changes.items():
        tensors.pop(f"{QKV}.{suffix}", None)
        if value is not None:
            tensors[f"{QKV}.{suffix}"] = value
    return tensors, metadata


def note(kind, **more):
    return noted(json.dumps({"format": kind, **more}))


PACKED = {
    "nvfp4": {
        "weight": torch.zeros(384, 64, dtype=torch.uint8),
        "weight_scale": torch.zeros(384, 8, dtype=F8),
        "weight_scale_2": torch.tensor(1.0),
    },
    "mxfp8": {
        "weight": torch.zeros(384, 128, dtype=F8),
        "weight_scale": torch.zeros(384, 4, dtype=torch.uint8),
    },
    "int8_tensorwise": {
        "weight": torch.zeros(384, 128, dtype=torch.int8),
        "weight_scale": torch.tensor(1.0),
    },
    "asym_w4a8_int8": {
        "weight": torch.zeros(384, 64, dtype=torch.int8),
        "weight_s_rel": torch.zeros(384, 8, dtype=F8),
        "weight_s_channel": torch.ones(384),
        "comfy_quant": note("asym_w4a8_int8", convrot_groupsize=64),
    },
}
for _kind, _parts in PACKED.items():
    _parts.setdefault("comfy_quant", note(_kind))


@pytest.mark.parametrize("kind", ["tomorrow", None])
def test_formats_that_are_not_read_say_which_file_to_use(kind, tmp_path):
    error = refusal(write(tmp_path, *scaled(comfy_quant=note(kind))))
    assert f"{QKV} is stored as {kind}" in error.found
    assert "fp8_scaled" in error.expected
    assert OTHER_FILE in error.remedy
    tensors, metadata = to_scaled(flux(), "header")
    text = metadata["_quantization_metadata"].replace("float8_e4m3fn", str(kind), 1)
    error = refusal(write(tmp_path, tensors, {"_quantization_metadata": text}))
    assert f"is stored as {kind}" in error.found
    assert OTHER_FILE in error.remedy


SPOILT_PARTS = {
    "nvfp4": {
        "weight_scale": (
            torch.zeros(384, 4, dtype=F8),
            "weight_scale is stored as F8_E4M3 .384, 4",
        ),
        "weight_scale_2": (None, "no .*weight_scale_2"),
        "weight": (torch.zeros(384, 60, dtype=torch.uint8), "the shape .384, 120."),
    },
    "mxfp8": {
        "weight": (torch.zeros(384, 127, dtype=F8), "the shape .384, 127."),
        "weight_scale": (torch.zeros(3, dtype=torch.uint8), "weight_scale is stored as U8"),
    },
    "int8_tensorwise": {
        "weight": (torch.zeros(2, 2, 2, dtype=torch.int8), "stored as I8 .2, 2, 2."),
        "weight_scale": (torch.tensor(math.nan), "weight_scale is not finite"),
        "comfy_quant": (note("int8_tensorwise", convrot=True), "128 columns .* groups of 256"),
    },
    "asym_w4a8_int8": {
        "weight_codebook": (torch.ones(15), "weight_codebook is stored as F32 .15."),
        "weight_s_channel": (None, "no .*weight_s_channel"),
        "comfy_quant": (
            note("asym_w4a8_int8", convrot_groupsize=64, group_size=-1),
            "group_size -1",
        ),
        "weight_s_rel": (torch.full((384, 8), math.inf), "weight_s_rel is not finite"),
    },
}


@pytest.mark.parametrize(
    ("kind", "part"), [(kind, part) for kind, parts in SPOILT_PARTS.items() for part in parts]
)
def test_a_packed_weight_that_is_not_whole_is_refused(kind, part, tmp_path):
    good = {**dict.fromkeys(("weight_scale", "comfy_quant")), **PACKED[kind]}
    use(write(tmp_path, *scaled(**good)))
    value, found = SPOILT_PARTS[kind][part]
    with pytest.raises(BaseModelError, match=found):
        use(write(tmp_path, *scaled(**{**good, part: value})))


@pytest.mark.parametrize(
    ("suffixes", "packing"),
    [
        (("qweight", "wscales", "smooth_factor", "lora_down"), "SVDQuant"),
        (("weight", "weight.absmax", "weight.quant_state.bitsandbytes__nf4"), "bitsandbytes"),
    ],
)
def test_packed_files_are_refused_by_the_packing(suffixes, packing, tmp_path):
    tensors = {k: v for k, v in flux().items() if not k.startswith(QKV)}
    tensors |= {f"{QKV}.{suffix}": torch.zeros(4, dtype=torch.uint8) for suffix in suffixes}
    error = refusal(write(tmp_path, tensors))
    assert packing in error.found
    assert OTHER_FILE in error.remedy


EIGHT_BITS = torch.ones(()).to(torch.float8_e4m3fn)
WRONG_SCALES = {
    "nan": ("new", {"weight_scale": torch.tensor(float("nan"))}, "weight_scale is not finite"),
    "inf": ("header", {"weight_scale": torch.tensor(float("inf"))}, "weight_scale is not finite"),
    "absent": ("new", {"weight_scale": None}, "no .*weight_scale"),
    "unannounced": ("new", {"comfy_quant": None}, "nothing in the file says"),
    "alone": ("old", {"weight": None}, "no .*qkv.weight"),
    "per column": ("new", {"weight_scale": torch.ones(128)}, r"shape \[128\] for a weight"),
    "per block": ("new", {"weight_scale": torch.ones(384, 4)}, r"shape \[384, 4\] for a weight"),
    "empty": ("new", {"weight_scale": torch.ones(0)}, r"shape \[0\] for a weight"),
    "of one number": ("new", {"weight": EIGHT_BITS, "weight_scale": torch.ones(2)}, r"shape \[2\]"),
    "no name": ("new", {"comfy_quant": noted('{"format": []}')}, r"qkv is stored as \[\]"),
    "integer": ("new", {"weight_scale": torch.tensor(3)}, "scale is stored as I64"),
    "beside bf16": ("new", {"weight": torch.ones(384, 128, dtype=torch.bfloat16)}, "as BF16"),
    "no json": ("new", {"comfy_quant": noted("{")}, "comfy_quant cannot be read"),
    "no text": ("new", {"comfy_quant": noted("{").add(250)}, "comfy_quant cannot be read"),
    "no object": ("new", {"comfy_quant": noted("[]")}, "comfy_quant cannot be read"),
    "no bytes": ("new", {"comfy_quant": torch.ones(9)}, "comfy_quant cannot be read"),
    "deep": ("new", {"comfy_quant": noted("[" * 60000)}, "comfy_quant cannot be read"),
    "huge": ("new", {"comfy_quant": noted("[" * 70000)}, "comfy_quant cannot be read"),
}


@pytest.mark.parametrize("case", WRONG_SCALES)
def test_wrong_scales_and_notes_are_refused(case, tmp_path):
    spelling, changes, found = WRONG_SCALES[case]
    path = write(tmp_path, *scaled(spelling, **changes))
    with pytest.raises(BaseModelError, match=f"Found: .*{found}"):
        use(path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"layers": []}', '{"layers": 3}'])
def test_a_damaged_note_in_the_header_is_refused(text, tmp_path):
    tensors, _ = to_scaled(flux(), "header")
    error = refusal(write(tmp_path, tensors, {"_quantization_metadata": text}))
    assert "_quantization_metadata" in error.found
