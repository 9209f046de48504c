"""The blocks of GGUF files, bit for bit as the package gguf reads them."""

import numpy as np
import pytest
import torch

from tests.fixtures.gguf_files import BLOCKS, TYPES, random_blocks
from trainer_core.quantization.gguf_blocks import GGUF_FORMATS
from trainer_core.tensors.gguf_reader import GGUF_TYPES

WRITTEN = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Those that the package writes too."""


@pytest.fixture
def gguf():
    return pytest.importorskip("gguf", reason="the package gguf, the reference, is not installed")


def dense(kind, blocks, width, dtype=torch.float32):
    parts = {"weight": torch.from_numpy(blocks)}
    return GGUF_FORMATS[kind].dense(parts, (len(blocks), width), dtype)


def same_bits(found, expected):
    return torch.equal(found.view(torch.int32), torch.from_numpy(expected).view(torch.int32))


def test_every_type_and_its_sizes_are_the_packages(gguf):
    sizes = gguf.constants.GGML_QUANT_SIZES
    own = {name: sizes[gguf.GGMLQuantizationType[name]] for name in GGUF_TYPES}
    assert own == GGUF_TYPES
    assert {name: GGUF_TYPES[name] for name in BLOCKS} == BLOCKS
    assert {name: int(gguf.GGMLQuantizationType[name]) for name in TYPES} == TYPES
    assert set(GGUF_FORMATS) == set(BLOCKS)


@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_random_blocks_are_read_bit_for_bit(kind, gguf):
    blocks = random_blocks(kind, 40, 512)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert same_bits(dense(kind, blocks, 512), expected)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        wanted = torch.from_numpy(expected).to(dtype)
        assert torch.equal(dense(kind, blocks, 512, dtype), wanted)


@pytest.mark.parametrize("kind", WRITTEN)
def test_weights_packed_by_the_package_are_read_bit_for_bit(kind, gguf):
    weight = np.random.default_rng(1).normal(0, 0.05, (24, 96)).astype(np.float32)
    weight[3] = 0
    own = gguf.GGMLQuantizationType[kind]
    blocks = gguf.quants.quantize(weight, own)
    found = dense(kind, blocks, 96)
    assert same_bits(found, gguf.quants.dequantize(blocks, own))
    assert np.abs(found.numpy() - weight).max() < 0.03


@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_rows_of_a_packed_weight_are_rows_of_the_dense_one(kind):
    stored, blocks = GGUF_FORMATS[kind], random_blocks(kind, 20, 512)
    parts = stored.take({"weight": torch.from_numpy(blocks)}, 3, 11)
    assert torch.equal(stored.dense(parts, (8, 512), torch.float32), dense(kind, blocks, 512)[3:11])
    assert sum(part.nbytes for part in parts.values()) == stored.stored_bytes((8, 512))
    assert stored.fits((8, 512))
    assert not stored.fits((8, 500))
    with pytest.raises(NotImplementedError, match=kind):
        stored.pack(torch.ones(8, 512))
