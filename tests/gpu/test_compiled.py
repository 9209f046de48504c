"""A run with compiled blocks on CUDA."""

import gc

import pytest
import torch
from runs import run_config

from trainer_core.training import train
from trainer_core.training.compiled_blocks import missing_compiler
from trainer_core.training.observer import SilentObserver, Warned

pytestmark = pytest.mark.gpu


class Listener(SilentObserver):
    """Keeps what is told of the compiler."""

    def __init__(self):
        self.lines = []

    def notify(self, event):
        if isinstance(event, Warned) and "memory.compile" in event.message:
            self.lines.append(event.message)


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
    told = Listener()

    def run(name, compiled):
        memory = {"device": "cuda", "gradient_checkpointing": True, "compile": compiled, **options}
        training = {"steps": 6, "precision": precision}
        config = run_config(tmp_path / name, cache, memory=memory, training=training)
        return train(config, told).losses

    plain = run("plain", False)
    gc.collect()
    before = torch.cuda.memory_allocated()
    assert run("compiled", True) == pytest.approx(plain, rel=5e-2)
    gc.collect()
    assert abs(torch.cuda.memory_allocated() - before) < 2**20
    assert told.lines == []
