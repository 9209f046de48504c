"""Adapters inside of what training wraps around a model, and what a compiler makes of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fixtures.combinations import some
from fixtures.textbook import relative
from fixtures.wrapped_blocks import (
    CASES,
    PROCESSES,
    WRAPPINGS,
    make_block,
    make_input,
    trained_alone,
)
from torch import distributed, nn

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 150


def gradients(run, adapter, x=None, autocast=False):
    """Output and gradients of two batches, collected as a trainer does it."""
    x = (make_input() if x is None else x).requires_grad_(True)
    leaves = [x, *adapter.parameters()]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(2)
    for scale in (0.5, 1.0):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = run(scale * x)
        # Off zero, so that no gradient is small by chance.
        (y.float() + 1).square().sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("case", some(CASES, "lora", "lokr dora"))
def test_it_compiles_as_one_graph(case):
    block, adapter = make_block(case)
    shared = case.endswith("shared")
    part = block if shared else block.out
    own = adapter if shared else nn.ParameterList(adapter.layers["out"].factors().values())
    x = torch.randn(3, 12 if shared else 16, generator=torch.Generator().manual_seed(3))
    plain = gradients(part, own, x)
    torch.compiler.reset()
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    for found, expected in zip(gradients(compiled, own, x), plain, strict=True):
        assert relative(found, expected) < 1e-5
    with torch.no_grad():
        for parameter in own.parameters():
            parameter += 0.1
    # What was compiled takes the factors as they are now.
    assert relative(compiled(x), part(x)) < 1e-5
    assert relative(compiled(x), plain[0]) > 1e-2


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """What two processes found, each with half of the batch."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("wrapped")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fixtures.wrapped_blocks", str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(index)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * PROCESSES, said[0][-4000:]
    return [torch.load(folder / f"{index}.pt") for index in range(PROCESSES)]


@pytest.fixture(scope="module")
def alone():
    return trained_alone()


@pytest.mark.exhaustive
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrapped_processes_compute_and_train_what_one_does(wrapped, alone, wrapping):
    parts = [process[wrapping][0]["outputs"] for process in wrapped]
    outputs = torch.cat(parts, dim=2)
    for index, case in enumerate(CASES):
        assert relative(outputs[:, index], alone["outputs"][:, index]) < 1e-5, case
    names = set(alone) - {"outputs"}
    for process in wrapped:
        found = process[wrapping][0]
        for name in names:
            # A difference from initialization is written as a pair; its outputs were compared.
            if not name.startswith("pissa"):
                assert relative(found[name], alone[name]) < 1e-5, name
            assert torch.equal(found[name], wrapped[0][wrapping][0][name]), name


def test_the_steps_changed_what_is_compared(alone):
    steps = alone["outputs"]
    for index, case in enumerate(CASES):
        assert relative(steps[-1, index], steps[0, index]) > 1e-3, case
