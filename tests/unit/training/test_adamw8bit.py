"""AdamW with moments in 8 bits, against bitsandbytes' and torch's."""

import pytest
import torch

from trainer_core.adapters.parameter_groups import ParameterGroup
from trainer_core.config import OptimizerSection
from trainer_core.training.optimizers import (
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from trainer_core.training.optimizers.adamw8bit import STATES, levels

CPU = torch.device("cpu")
SHAPES = ((64, 64), (8192,), (5, 4, 256), (33, 129), (63, 65), (7,))
"""Whole blocks; others with a part of one; too small for 8 bits, by one number and by far."""


def parameters(seed=0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def run_steps(optimizer, weights, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for each in weights:
            each.grad = torch.randn(each.shape, generator=generator).to(each.device)
        optimizer.step()


def make(weights, name="adamw8bit", **settings):
    section = OptimizerSection.model_validate({"name": name, **settings})
    return make_optimizer(section, [ParameterGroup(tuple(weights))])


def same(one, other):
    return [torch.equal(a, b) for a, b in zip(one, other, strict=True)]


def test_levels_and_steps_are_those_of_bitsandbytes():
    bnb = pytest.importorskip("bitsandbytes", reason="the reference is not installed")
    from bitsandbytes.functional import create_dynamic_map

    for name, signed in zip(STATES, (True, False), strict=True):
        assert torch.equal(levels(name, CPU).values, create_dynamic_map(signed=signed))
    ours, theirs = parameters(), parameters()
    settings = {"learning_rate": 0.01, "weight_decay": 0.1, "beta2": 0.95}
    one = make(ours, **settings)
    other = bnb.optim.AdamW8bit(theirs, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(4):
        run_steps(one, ours, 1, seed=step)
        run_steps(other, theirs, 1, seed=step)
    for start, mine, their in zip(parameters(), ours, theirs, strict=True):
        assert (mine - their).norm() <= 5e-3 * (their - start).norm()
        kept, expected = one.state[mine], other.state[their]
        if expected["state1"].dtype != torch.uint8:
            continue
        for number, name in enumerate(STATES, 1):
            read = levels(name, CPU).unpack(kept[name]).view(-1)[: mine.numel()]
            code, scale = expected[f"state{number}"].view(-1), expected[f"absmax{number}"]
            known = torch.ops.bitsandbytes.dequantize_blockwise(
                code, scale, expected[f"qmap{number}"], 256, torch.float32
            )
            assert (read - known).norm() <= 5e-3 * known.norm()


@pytest.mark.parametrize("name", STATES)
def test_each_number_gets_the_nearest_level(name):
    """Looked up one by one in float64: bitsandbytes' own table for a CPU is coarse near zero."""
    form = levels(name, CPU)
    moment = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)) ** 5
    moment[3] = 0.0
    moment = moment.abs() if name == "exp_avg_sq" else moment
    packed = form.pack(moment)
    scale = moment.abs().amax(1, keepdim=True).double()
    share = moment.double() / scale.clamp_min(1e-300)
    distance = (share[..., None] - form.values.double()).abs()
    nearest = distance[..., int(name == "exp_avg_sq") :].min(-1).values
    chosen = distance.gather(-1, packed[:, :256, None].long())[..., 0]
    assert torch.allclose(chosen, nearest, rtol=0, atol=1e-7)
    assert torch.equal(packed[:, 256:].view(torch.float32), scale.float())
    assert not form.unpack(packed)[3].any()


@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw")])
def test_a_state_is_converted(before, after):
    whole = parameters()
    optimizer = make(whole, before)
    run_steps(optimizer, whole, 5, seed=1)
    other = make(whole, after)
    load_optimizer_tensors(other, optimizer_tensors(optimizer))
    there_and_back = make(whole, before)
    load_optimizer_tensors(there_and_back, optimizer_tensors(other))
    for each in whole:
        kept, back = optimizer.state[each], there_and_back.state[each]
        assert kept["step"] == other.state[each]["step"] == 5
        for name in STATES:
            one, two = (
                levels(name, CPU).unpack(m) if m.dtype == torch.uint8 else m
                for m in (kept[name], back[name])
            )
            assert (one - two).norm() < 0.03 * one.norm()
