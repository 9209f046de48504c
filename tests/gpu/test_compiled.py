"""A run with compiled blocks on CUDA."""

import pytest
import torch
from runs import CancelAfter, run_config

from tests.gpu.memory import given_back
from trainer_core.training import train
from trainer_core.training.compiled_blocks import missing_compiler

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "options", [{}, {"blocks_to_swap": 5}, {"base_format": "int8", "compute": "8bit"}]
)
def test_it_learns_as_a_run_that_is_not_compiled_and_gives_all_memory_back(
    tmp_path, cache, options, precision
):
    missing = missing_compiler(torch.device("cuda"))
    if missing is not None:
        pytest.skip(missing)
    told = CancelAfter()

    def run(name, compiled):
        memory = {"device": "cuda", "gradient_checkpointing": True, "compile": compiled, **options}
        training = {"steps": 6, "precision": precision}
        config = run_config(tmp_path / name, cache, memory=memory, training=training)
        return train(config, told).losses

    plain = run("plain", False)
    with given_back():
        assert run("compiled", True) == pytest.approx(plain, rel=5e-2)
    assert not [each for each in told.said() if "memory.compile" in each]
