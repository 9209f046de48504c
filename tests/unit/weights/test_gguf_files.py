"""A GGUF file becomes the model that the package gguf reads from it; a hostile one an error."""

import itertools
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.gguf_files import (
    BLOCKS,
    TYPES,
    file_of,
    listed,
    random_blocks,
    text,
    write_with_gguf,
)
from tests.fixtures.native_files import flux_to_native, locate_file, native_state, packed_layers
from trainer_core.bases.locate import detect_base
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.weights.header import check_formats, open_weights
from trainer_core.weights.tensor_reader import TensorReader


@pytest.fixture
def gguf():
    return pytest.importorskip("gguf", reason="the package gguf, the reference, is not installed")


def write(path, family, gguf, prefix=""):
    """A file with every type by turns, and the numbers that the package reads in it."""
    plain = itertools.cycle(["F32", "F16", "BF16"])
    turns = {
        size: itertools.cycle([k for k in BLOCKS if BLOCKS[k][0] == size]) for size in (32, 256)
    }
    tensors, expected = {}, {}
    for place, (name, value) in enumerate(native_state(family).items()):
        width = value.shape[1] if value.ndim == 2 else 1
        fits = next((size for size in (256, 32) if width % size == 0), None)
        kind = next(plain if fits is None else turns[fits])
        if fits:
            content = random_blocks(kind, *value.shape, place)
        elif kind == "F16":
            content = value.half().numpy()
        else:
            content = gguf.quants.quantize(value.numpy(), gguf.GGMLQuantizationType[kind])
        tensors[f"{prefix}{name}"] = (kind, content)
        number = gguf.quants.dequantize(content, gguf.GGMLQuantizationType[kind])
        expected[name] = torch.from_numpy(number.copy()).reshape(value.shape)
    missing = set(TYPES) - {kind for kind, _ in tensors.values()}
    assert not missing or (family, len(missing)) == ("qwen_image", 2)
    return write_with_gguf(path, tensors), expected


def load(path, family="flux", dtype=torch.float32, base_format="dense"):
    return get_family(family).load_transformer(locate_file(path, family), dtype, "cpu", base_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "prefix"), [("flux", ""), ("qwen_image", "model.diffusion_model.")]
)
def test_a_file_becomes_the_numbers_that_the_package_reads(family, prefix, dtype, gguf, tmp_path):
    path, expected = write(tmp_path / "base.gguf", family, gguf, prefix)
    assert detect_base(path) == family
    state = load(path, family, dtype).state_dict()
    found = flux_to_native(state) if family == "flux" else state
    assert found.keys() == expected.keys()
    assert [k for k, v in expected.items() if not torch.equal(found[k], v.to(dtype))] == []


def test_a_packed_model_has_the_numbers_of_the_dense_one(gguf, tmp_path):
    """Fused layers come apart by rows; no weight is written out."""
    path, _ = write(tmp_path / "base.gguf", "flux", gguf)
    dense, layers = load(path), packed_layers(load(path, base_format="file"))
    assert len(layers) == 40
    assert len({layer.stored.name for layer in layers.values()}) >= 9
    for name, layer in layers.items():
        assert torch.equal(layer.dense(), dense.get_parameter(f"{name}.weight"))
    layer, x = layers["transformer_blocks.0.attn.to_q"], torch.randn(3, 128, requires_grad=True)
    y = layer(x)
    assert torch.equal(y, torch.nn.functional.linear(x, layer.dense(), layer.bias))
    assert torch.autograd.grad(y.sum(), x)[0].any()


def good(rows=4):
    return listed("a", [rows, 32], TYPES["Q8_0"], 0)


NOTE = text("note")
HOSTILE = {
    "empty": (b"", "byte 0"),
    "no gguf": (b"PK\3\4" + b"\0" * 100, "does not begin with GGUF"),
    "cut in the header": (file_of([good()], 136)[:30], "header goes on"),
    "cut in the data": (file_of([good()], 136)[:-1], "lie from byte"),
    "version 1": (file_of([good()], 136, version=1), "version 1"),
    "big-endian": (file_of([good()], 136, version=3 << 24), "version 50331648"),
    "many tensors": (file_of([good()], 136, tensors=1 << 60), "lists 1152921504606846976 tensors"),
    "more tensors": (file_of([good()], 136, tensors=90000), "axes|header goes on|name of"),
    "many entries": (file_of([good()], 136, entries=1 << 40), "1099511627776 entries"),
    "long name": (file_of([struct.pack("<Q", 1 << 60)], 136), "name of 1152921504606846976 bytes"),
    "long text": (
        file_of([], 0, [NOTE + struct.pack("<IQ", 8, 1 << 60)]),
        "goes on for 1152921504606846976 bytes",
    ),
    "long array": (
        file_of([], 0, [NOTE + struct.pack("<IIQ", 9, 5, 1 << 61)]),
        "goes on for 9223372036854775808 bytes",
    ),
    "many texts": (
        file_of([], 0, [NOTE + struct.pack("<IIQ", 9, 8, 1 << 50)]),
        "lists 1125.* texts",
    ),
    "array of arrays": (file_of([], 0, [NOTE + struct.pack("<IIQ", 9, 9, 2)]), "value of type 9"),
    "unknown value": (file_of([], 0, [NOTE + struct.pack("<I", 77)]), "value of type 77"),
    "no text": (file_of([], 0, [struct.pack("<Q", 2) + b"\xff\xfe"]), "utf-8"),
    "alignment": (
        file_of([good()], 136, [text("general.alignment") + struct.pack("<II", 4, 24)]),
        "alignment is 24",
    ),
    "no axis": (file_of([listed("a", [], 0, 0)], 136), "0 axes"),
    "many axes": (file_of([text("a") + struct.pack("<I", 1 << 31)], 136), "2147483648 axes"),
    "large": (file_of([listed("a", [1 << 62, 1 << 62], 0, 0)], 136), "lie from byte"),
    "far": (file_of([listed("a", [4, 32], 8, 1 << 62)], 136), "lie from byte"),
    "crooked": (file_of([listed("a", [4, 32], 8, 8)], 160), "lie from byte"),
    "no blocks": (file_of([listed("a", [4, 33], 8, 0)], 160), "not whole blocks of Q8_0"),
    "unknown type": (file_of([listed("a", [4, 32], 99, 0)], 160), "stored as type 99"),
    "type not read": (file_of([listed("a", [4, 256], 23, 0)], 999), "stored as IQ4_XS"),
    "integers": (file_of([listed("a", [4, 256], 26, 0)], 9999), "stored as I32"),
    "overlap": (
        file_of([good(), listed("b", [4, 32], 8, 128)], 300),
        "'b' overlaps another tensor",
    ),
    "twice": (file_of([good(), listed("a", [4, 32], 8, 160)], 300), "'a' is there twice"),
    "no matrix": (file_of([listed("a", [64], 8, 0)], 300), "a of the shape .64. is Q8_0"),
    "nothing": (file_of([], 0), "holds no tensor"),
    "no family": (file_of([good()], 136), "of no family"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_clear_error(case, tmp_path):
    content, found = HOSTILE[case]
    path = tmp_path / "base.gguf"
    path.write_bytes(content)
    with pytest.raises(BaseModelError, match=found) as error:
        detect_base(path)
    assert all((error.value.found, error.value.expected, error.value.remedy))
    assert str(path) in error.value.found
    assert len(error.value.found) < 1000


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_header_never_ends_in_another_error(data, tmp_path):
    notes = [text("general.name") + struct.pack("<I", 8) + text("x")]
    notes += [NOTE + struct.pack("<IIQ", 9, 8, 2) + text("one") + text("two")]
    content = bytearray(file_of([good(), listed("b", [4, 32], 8, 160)], 300, notes))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 190))] = data.draw(st.integers(0, 255))
    path = tmp_path / "base.gguf"
    path.write_bytes(bytes(content))
    with pytest.raises(BaseModelError):
        detect_base(path)


def test_a_file_that_becomes_shorter_is_named(tmp_path):
    path = tmp_path / "base.gguf"
    path.write_bytes(file_of([good()], 136))
    file = open_weights(path)
    reader = TensorReader(file, check_formats(file), torch.device("cpu"))
    assert reader.read("a", [(0, 4)], torch.float32)[0].shape == (4, 32)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BaseModelError, match="a cannot be read"):
        reader.read("a", [(0, 4)], torch.float32)
