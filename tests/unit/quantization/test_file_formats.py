"""ComfyUI's packed formats against formulas that are worked out here, number by number."""

import numpy as np
import pytest
import torch

from trainer_core.quantization.block_scaled import Mxfp8, Nvfp4, tiled_count
from trainer_core.quantization.rotated_integers import AsymW4A8, ConvRotW4A4, Int8Tensorwise

ROWS, WIDTH, GROUP = 160, 128, 64
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
F8 = torch.float8_e4m3fn


def tile_place(row, run, across):
    """Where the scale of a row and a run lies, as cuBLAS describes it."""
    tile = (row // 128) * across + run // 4
    return tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + run % 4


def tiled(scales):
    """Scales in rows, put into tiles one by one."""
    rows, runs = scales.shape
    flat = torch.zeros(tiled_count(rows, runs), dtype=torch.uint8)
    across = -(-runs // 4)
    for row in range(rows):
        for run in range(runs):
            flat[tile_place(row, run, across)] = scales.view(torch.uint8)[row, run]
    return flat.view(scales.dtype).reshape(-1, 4 * across)


def rotation(size):
    """The regular Hadamard matrix of a power of four, normalized."""
    base = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=np.float64)
    matrix = base
    while len(matrix) < size:
        matrix = np.kron(matrix, base)
    assert np.array_equal(matrix @ matrix.T, size * np.eye(size))
    return matrix / np.sqrt(size)


def rotated(weight):
    return (weight.reshape(len(weight), -1, GROUP) @ rotation(GROUP).T).reshape(weight.shape)


def halves(packed, *, upper_first):
    codes = packed.view(torch.uint8).numpy().astype(np.int64)
    pairs = [codes >> 4, codes & 15] if upper_first else [codes & 15, codes >> 4]
    return np.stack(pairs, axis=-1).reshape(len(codes), -1)


def floats(low, high, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * (high - low) + low


def codes(*shape, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(dtype)


def nvfp4():
    weight, scales = codes(ROWS, WIDTH // 2), floats(0.5, 2, ROWS, WIDTH // 16).to(F8)
    parts = {"weight": weight, "weight_scale": tiled(scales), "weight_scale_2": torch.tensor(0.3)}
    table = np.array(E2M1 + [-value for value in E2M1])
    numbers = table[halves(weight, upper_first=True)]
    return Nvfp4(), parts, numbers * scales.double().numpy().repeat(16, 1) * np.float64(0.3)


def mxfp8():
    weight = floats(-400, 400, ROWS, WIDTH).to(F8)
    scales = torch.randint(110, 135, (ROWS, WIDTH // 32), dtype=torch.uint8)
    scales[0] = 0
    expected = weight.double().numpy() * (2.0 ** (scales.double().numpy() - 127)).repeat(32, 1)
    expected[0] = 0
    return Mxfp8(), {"weight": weight, "weight_scale": tiled(scales)}, expected


def int8(*, by_row=False, turned=False):
    weight = codes(ROWS, WIDTH, dtype=torch.int8)
    scale = floats(0.5, 2, ROWS, 1) if by_row else torch.tensor(0.7)
    expected = weight.double().numpy() * scale.double().numpy()
    stored = Int8Tensorwise(GROUP if turned else 0)
    parts = {"weight": weight, "weight_scale": scale}
    return stored, parts, rotated(expected) if turned else expected


def w4a4():
    weight, scale = codes(ROWS, WIDTH // 2, dtype=torch.int8), floats(0.5, 2, ROWS)
    numbers = halves(weight, upper_first=False)
    signed = np.where(numbers > 7, numbers - 16, numbers)
    parts = {"weight": weight, "weight_scale": scale}
    return ConvRotW4A4(GROUP), parts, rotated(signed * scale.double().numpy()[:, None])


def w4a8(*, book=True):
    weight, scale = codes(ROWS, WIDTH // 2, dtype=torch.int8), floats(0.5, 2, ROWS)
    runs = floats(1, 16, ROWS, WIDTH // 16)
    parts = {"weight": weight, "weight_s_channel": scale}
    parts["weight_s_rel"] = runs.to(F8) if book else runs
    numbers = halves(weight, upper_first=False)
    values = numbers - 8.0
    if book:
        parts["weight_codebook"] = floats(-8, 8, 16)
        values = parts["weight_codebook"].double().numpy()[numbers]
    steps = np.round(values * parts["weight_s_rel"].double().numpy().repeat(16, 1))
    expected = np.clip(steps, -127, 127) * scale.double().numpy()[:, None]
    return AsymW4A8(16, GROUP, book, 1 if book else 4), parts, rotated(expected)


CASES = {
    "nvfp4": nvfp4,
    "mxfp8": mxfp8,
    "int8_tensorwise": int8,
    "int8 by row": lambda: int8(by_row=True),
    "int8 rotated": lambda: int8(by_row=True, turned=True),
    "convrot_w4a4": w4a4,
    "asym_w4a8_int8": w4a8,
    "asym_w4a8_int8 in even steps": lambda: w4a8(book=False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_what_its_formula_says(case):
    stored, parts, expected = CASES[case]()
    taken = stored.take(parts, 0, ROWS)
    found = stored.dense(taken, (ROWS, WIDTH), torch.float64)
    exact = torch.from_numpy(expected)
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-6 * float(exact.abs().max()))
    assert sum(part.nbytes for part in taken.values()) == stored.stored_bytes((ROWS, WIDTH))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert stored.dense(taken, (ROWS, WIDTH), dtype).dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        under = stored.dense(taken, (ROWS, WIDTH), torch.float32)
    assert torch.equal(under, stored.dense(taken, (ROWS, WIDTH), torch.float32))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_packed_weight_are_rows_of_the_dense_one(case, dtype):
    stored, parts, _ = CASES[case]()
    whole = stored.dense(stored.take(parts, 0, ROWS), (ROWS, WIDTH), dtype)
    rows = stored.take(parts, 17, 147)
    assert torch.equal(stored.dense(rows, (130, WIDTH), dtype), whole[17:147])
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in rows.values())
