"""A run whose blocks are compiled: the losses of one whose blocks are not, or that run itself."""

import pytest
from runs import PREVIEW, CancelAfter, assert_equal_runs, metrics, run_config

from tests.fixtures.compiler import NEEDS_COMPILER
from trainer_core.training import train

ADAPTER = {"kind": "lora", "dropout": 0.0}


def config(folder, cache, compiled, steps, **memory):
    memory |= {"compile": compiled}
    training = {"steps": steps, "precision": "fp32"}
    return run_config(
        folder, cache, memory=memory, training=training, adapter=ADAPTER, preview=PREVIEW
    )


def test_without_a_compiler_a_run_goes_on_and_says_so(tmp_path, cache):
    from torch._inductor import config as inductor

    plain, told = train(config(tmp_path / "a", cache, False, 1)), CancelAfter()
    with inductor.patch({"cpp.cxx": ("/nowhere/cxx",)}):
        found = train(config(tmp_path / "b", cache, True, 1), told)
    assert_equal_runs(plain.folder, found.folder, 1)
    (line,) = [line for line in told.said() if "memory.compile" in line]
    assert "no C++ compiler" in line


@pytest.mark.exhaustive
@NEEDS_COMPILER
@pytest.mark.parametrize("memory", [{}, {"blocks_to_swap": 5, "gradient_checkpointing": True}])
def test_a_compiled_run_has_the_losses_of_one_that_is_not(tmp_path, cache, memory):
    plain = train(config(tmp_path / "plain", cache, False, 3, **memory))
    # Twice: the second one meets what the first one has left.
    for name in ("first", "second"):
        told = CancelAfter()
        found = train(config(tmp_path / name, cache, True, 3, **memory), told)
        assert not [line for line in told.said() if "memory.compile" in line]
        losses = [[line["loss"] for line in metrics(run.folder)] for run in (found, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert losses[0] != losses[1], "nothing was compiled"
