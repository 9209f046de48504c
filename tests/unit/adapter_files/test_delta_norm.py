"""A layer's norm is that of the change that its factors make, and the change is not built."""

import pytest
import torch

from tests.fixtures.made_bytes import MadeBytes
from trainer_core.adapter_files.factors.effective_delta import delta_norm
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.types import LayerState

ROWS, COLUMNS, RANK = 1152, 768, 8


def layer(kind, dtype=torch.float32, size=0.02, rank=RANK):
    def factor(*shape):
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * size).to(dtype)

    generator = torch.Generator().manual_seed(1)
    made = {
        "lora": lambda: {"lora_up": factor(ROWS, rank), "lora_down": factor(rank, COLUMNS)},
        "loha": lambda: {
            name: factor(*shape)
            for half in "12"
            for name, shape in (
                (f"hada_w{half}_a", (ROWS, rank)),
                (f"hada_w{half}_b", (rank, COLUMNS)),
            )
        },
        "lokr": lambda: {
            "lokr_w1": factor(8, 8),
            "lokr_w2_a": factor(ROWS // 8, rank),
            "lokr_w2_b": factor(rank, COLUMNS // 8),
        },
        "lokr whole": lambda: {
            "lokr_w1": factor(8, 8),
            "lokr_w2": factor(ROWS // 8, COLUMNS // 8),
        },
    }
    return LayerState(made[kind](), 4.0, rank)


def wanted(kind, state):
    wide = {name: tensor.double() for name, tensor in state.tensors.items()}
    delta = layer_delta(kind, LayerState(wide, state.alpha, state.rank))
    return float(torch.linalg.vector_norm(delta))


CASES = [("lora", 8), ("lora", 96), ("loha", 4), ("loha", 32), ("lokr", 8), ("lokr whole", 8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.02, 1e-9, 1e12])
@pytest.mark.parametrize(("case", "rank"), CASES)
def test_the_norm_is_that_of_the_change(case, rank, size, dtype):
    state, kind = layer(case, dtype, size, rank), case.split()[0]
    assert delta_norm(kind, state) == pytest.approx(wanted(kind, state), rel=1e-6, abs=0)


def test_products_that_nearly_cancel_are_computed_in_float64():
    state = layer("lora")
    up, down = state.tensors["lora_up"], state.tensors["lora_down"]
    # Two directions that take back all but a ten-thousandth of each other.
    up[:, 1::2] = -up[:, ::2]
    down[1::2] = down[::2] * (1 + 1e-4)
    assert delta_norm("lora", state) == pytest.approx(wanted("lora", state), rel=1e-6)


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_factors_of_zeros_change_nothing(kind):
    state = layer(kind)
    name = {"lora": "lora_up", "loha": "hada_w1_a", "lokr": "lokr_w2_a"}[kind]
    state.tensors[name].zero_()
    assert delta_norm(kind, state) == 0.0


@pytest.mark.parametrize(("case", "rank"), CASES)
def test_the_change_is_not_built(case, rank):
    state = layer(case, rank=rank)
    with MadeBytes() as made:
        delta_norm(case.split()[0], state)
    assert made.largest < ROWS * COLUMNS * 4 / 4
    with MadeBytes() as made:
        layer_delta(case.split()[0], state)
    assert made.largest >= ROWS * COLUMNS * 4
