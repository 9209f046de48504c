"""A layer's norm is that of the change that its factors make, and the change is not built."""

import pytest
import torch

from tests.fixtures.adapter_states import make_state
from tests.fixtures.combinations import pairwise
from trainer_core.adapter_files.factors.effective_delta import delta_norm
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.types import LayerState

ROWS, COLUMNS, RANK = 1152, 768, 8


def layer(case, dtype=torch.float32, size=0.02, rank=RANK):
    options = {"factor": 8, "full_matrix": case == "lokr whole"}
    sizes = {"x": (COLUMNS, ROWS)}
    made = make_state(case.split()[0], rank, 4.0, seed=1, sizes=sizes, **options).layers["x"]
    tensors = {n: (each.double() * size).to(dtype) for n, each in made.tensors.items()}
    return LayerState(tensors, 4.0, rank)


def wanted(kind, state):
    wide = {name: tensor.double() for name, tensor in state.tensors.items()}
    delta = layer_delta(kind, LayerState(wide, state.alpha, state.rank))
    return float(torch.linalg.vector_norm(delta))


CASES = [("lora", 8), ("lora", 96), ("loha", 4), ("loha", 32), ("lokr", 8), ("lokr whole", 8)]


@pytest.mark.parametrize(
    ("case", "size", "dtype"), pairwise(CASES, [0.02, 1e-9, 1e12], [torch.float32, torch.float64])
)
def test_the_norm_is_that_of_the_change(case, size, dtype):
    case, rank = case
    state, kind = layer(case, dtype, size, rank), case.split()[0]
    assert delta_norm(kind, state) == pytest.approx(wanted(kind, state), rel=1e-6, abs=0)


def test_products_that_nearly_cancel_are_computed_in_float64():
    state = layer("lora")
    up, down = state.tensors["lora_up"], state.tensors["lora_down"]
    # Two directions that take back all but a ten-thousandth of each other.
    up[:, 1::2] = -up[:, ::2]
    down[1::2] = down[::2] * (1 + 1e-4)
    assert delta_norm("lora", state) == pytest.approx(wanted("lora", state), rel=1e-6)
