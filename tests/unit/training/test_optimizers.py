"""Every optimizer: its steps, its state in a checkpoint, what it needs and what it takes."""

import sys
from typing import get_args

import pytest
import torch

from tests.fixtures.compiler import COMPILED, NEEDS_COMPILER
from trainer_core.adapters.parameter_groups import ParameterGroup
from trainer_core.config import OptimizerSection
from trainer_core.config.optimizer import AVERAGES_ITSELF, OptimizerName
from trainer_core.errors import InputError
from trainer_core.training.optimizers import (
    OPTIMIZERS,
    evaluation_weights,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    rehearse,
    require_optimizer,
    set_learning_rate,
)
from trainer_core.training.optimizers.stored_state import NUMBERS

EVERY = [
    pytest.param(name, marks=[pytest.mark.exhaustive, NEEDS_COMPILER] if name in COMPILED else ())
    for name in get_args(OptimizerName)
]
SHAPES = ((64, 80), (80, 64), (8, 4, 3, 3), (70,))
pytestmark = pytest.mark.filterwarnings("ignore")


def section(name, **settings):
    return OptimizerSection.model_validate({"name": name, **settings})


def parameters(seed=0, dtype=torch.float32):
    """Two factors, of which one begins as zeros; one of a convolution; and a magnitude."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
    found[1].zero_()
    return [torch.nn.Parameter(each) for each in found]


def made(weights, name, **settings):
    pytest.importorskip(OPTIMIZERS[name].package or "torch")
    first, second, conv, magnitude = weights
    groups = [ParameterGroup((first, conv)), ParameterGroup((second,), decay=0.5)]
    groups.append(ParameterGroup((magnitude,), decays=False))
    return make_optimizer(section(name, **settings), groups)


def gradients(weights, step, *, some=True):
    generator = torch.Generator().manual_seed(step)
    for index, each in enumerate(weights):
        drawn = torch.randn(each.shape, generator=generator, dtype=each.dtype)
        # As when a layer is left out by chance.
        each.grad = None if some and (step + index) % 5 == 0 else drawn


def train(optimizer, weights, steps, rate):
    for step in steps:
        gradients(weights, step)
        set_learning_rate(optimizer, rate * min(1.0, step / 4))
        optimizer.step()


def copies(weights):
    return [torch.nn.Parameter(each.detach().clone()) for each in weights]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_optimizer_goes_on_bit_for_bit(name):
    rate = section(name).learning_rate
    whole, parts = parameters(), parameters()
    one, other = made(whole, name), made(parts, name)
    settings = [dict(group) for group in one.param_groups]
    rehearse(other)
    assert same(parts, parameters())
    assert all(each.grad is None for each in parts)
    train(one, whole, range(1, 7), rate)
    train(other, parts, range(1, 4), rate)
    stored = {key: each.clone() for key, each in optimizer_tensors(other).items()}
    again = copies(parts)
    resumed = made(again, name)
    load_optimizer_tensors(resumed, stored)
    assert same(again, parts)
    found = optimizer_tensors(resumed)
    assert found.keys() == stored.keys()
    assert all(found[key].dtype == stored[key].dtype for key in stored)
    train(resumed, again, range(4, 7), rate)
    assert same(whole, again)
    ends, expected = optimizer_tensors(resumed), optimizer_tensors(one)
    assert ends.keys() == expected.keys()
    assert same([each.double() for each in ends.values()], [e.double() for e in expected.values()])
    assert not same(whole, parameters())
    # Whatever a step changes in a group is kept.
    for before, group in zip(settings, one.param_groups, strict=True):
        fixed = group.keys() - NUMBERS - {"params", "lr"}
        assert {key: group[key] for key in fixed} == {key: before.get(key) for key in fixed}


@pytest.mark.parametrize("name", EVERY)
def test_the_state_takes_what_the_table_says(name):
    assert_takes_what_it_says(name, {})


@pytest.mark.parametrize(
    ("name", "beta1"), [("adafactor", 0.9), ("sgd", 0.0), ("prodigy", 0.0), ("came", 0.0)]
)
def test_a_mean_gradient_is_counted_where_beta1_asks_for_one(name, beta1):
    assert_takes_what_it_says(name, {"beta1": beta1})


def assert_takes_what_it_says(name, settings):
    weights = parameters()
    optimizer = made(weights, name, **settings)
    # From a gradient for all of them, so that each has a state.
    for step in (1, 2):
        gradients(weights, step, some=False)
        optimizer.step()
    for index, each in enumerate(weights[:3]):
        found = {
            id(kept): kept.numel() * kept.element_size()
            for key, kept in optimizer_tensors(optimizer).items()
            if key.startswith(f"optimizer.{[0, 2, 1][index]}.") and kept.ndim and "qmap" not in key
        }
        taken = sum(found.values())
        told = OPTIMIZERS[name].kept_bytes(each.shape, section(name, **settings))
        # Prodigy keeps no copy of a factor that begins as zeros.
        spared = 4 * each.numel() if "prodigy" in name and index == 1 else 0
        assert told * 0.99 - spared <= taken <= told * 1.01 + 64


REFERENCES = {
    "adamw": lambda ws: torch.optim.AdamW(ws, 1e-4, foreach=True),
    "sgd": lambda ws: torch.optim.SGD(ws, 0.01, momentum=0.9),
    "adamw_paged": lambda ws: library("bitsandbytes").optim.PagedAdamW32bit(ws, 1e-4),
    "adamw8bit_paged": lambda ws: library("bitsandbytes").optim.PagedAdamW8bit(ws, 1e-4),
    "lion": lambda ws: library("bitsandbytes").optim.Lion(ws, 3e-5, weight_decay=0.03),
    "lion8bit": lambda ws: library("bitsandbytes").optim.Lion8bit(ws, 3e-5, weight_decay=0.03),
    "lion8bit_paged": lambda ws: library("bitsandbytes").optim.PagedLion8bit(
        ws, 3e-5, weight_decay=0.03
    ),
    "adafactor": lambda ws: library("transformers").optimization.Adafactor(
        ws, 1e-4, scale_parameter=False, relative_step=False, weight_decay=0.01
    ),
    "prodigy": lambda ws: library("prodigyopt").Prodigy(
        ws, weight_decay=0.01, use_bias_correction=True, safeguard_warmup=True
    ),
    "prodigy_schedule_free": lambda ws: library("prodigyplus").ProdigyPlusScheduleFree(ws),
    "adamw_schedule_free": lambda ws: library("schedulefree").AdamWScheduleFree(
        ws, 3e-4, weight_decay=0.01
    ),
    "came": lambda ws: library("came_pytorch").CAME(ws, 3e-5, weight_decay=0.01),
    "adamw4bit": lambda ws: library("torchao").optim.AdamW4bit(ws, 1e-4, weight_decay=0.01),
    "adamw_fp8": lambda ws: library("torchao").optim.AdamWFp8(ws, 1e-4, weight_decay=0.01),
}


def library(name):
    return pytest.importorskip(name)


@pytest.mark.parametrize("name", [each for each in EVERY if each.values[0] in REFERENCES])
def test_steps_are_those_of_the_library_with_our_defaults(name):
    ours, theirs = parameters(), parameters()
    # First, because it skips where there is no such library.
    other = REFERENCES[name](theirs)
    one = make_optimizer(section(name), [ParameterGroup(tuple(ours))])
    if name in AVERAGES_ITSELF:
        other.train()
    for step in range(1, 6):
        for weights, optimizer in ((ours, one), (theirs, other)):
            gradients(weights, step)
            optimizer.step()
    for start, mine, their in zip(parameters(), ours, theirs, strict=True):
        moved = (their - start).abs().max()
        assert moved > 0
        # The sum of Lion's two means is rounded in another order, which may turn a sign.
        if name == "lion":
            assert ((mine - their).abs() > 1e-3 * moved).float().mean() < 1e-3
        else:
            assert (mine - their).abs().max() <= 1e-3 * moved


def assert_follows(update, settings, decay=1.0):
    """Steps in float64 against a formula of step, weight, gradient and two moments."""
    weight = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    optimizer = make_optimizer(settings, [ParameterGroup((weight,), decay=decay)])
    expected, moments = weight.detach().clone(), torch.zeros(2, 50, dtype=torch.float64)
    for step in range(1, 10):
        weight.grad = torch.randn(50, dtype=torch.float64)
        expected = update(step, expected, weight.grad.clone(), *moments)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)


def test_lion_follows_the_paper():
    """Chen et al. 2023, algorithm 2."""

    def update(step, weight, gradient, mean, _):
        moved = torch.sign(0.8 * mean + 0.2 * gradient)
        mean.mul_(0.95).add_(0.05 * gradient)
        return weight - 0.01 * (moved + 0.1 * weight)

    given = {"learning_rate": 0.01, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}
    assert_follows(update, section("lion", **given))


def test_sgd_decays_beside_its_momentum():
    """As AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 1)."""

    def update(step, weight, gradient, momentum, _):
        momentum.mul_(0.9).add_(gradient)
        return (1 - 0.02 * 0.25) * weight - 0.02 * momentum

    assert_follows(update, section("sgd", learning_rate=0.02, weight_decay=0.5), decay=0.5)


def test_adamw_follows_the_textbook_update():
    """Loshchilov & Hutter 2019, algorithm 2."""

    def update(step, weight, gradient, mean, square):
        mean.mul_(0.8).add_(0.2 * gradient)
        square.mul_(0.95).add_(0.05 * gradient**2)
        corrected = (square / (1 - 0.95**step)).sqrt() + 1e-8
        return weight * (1 - 0.01 * 0.1) - 0.01 * (mean / (1 - 0.8**step)) / corrected

    given = {"learning_rate": 0.01, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}
    assert_follows(update, OptimizerSection(**given))


def test_muon_takes_matrices_and_adamw_the_rest():
    weights = parameters()
    optimizer = made(weights, "muon")
    reference = copies(weights)
    # The second group decays by half of it.
    muon = torch.optim.Muon(
        [{"params": [reference[0]]}, {"params": [reference[1]], "weight_decay": 0.005}],
        1e-4,
        weight_decay=0.01,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW([reference[2]], 1e-4, (0.95, 0.999), fused=True)
    magnitude = torch.optim.AdamW([reference[3]], 1e-4, (0.95, 0.999), weight_decay=0.0, fused=True)
    for step in range(1, 4):
        for each in (weights, reference):
            gradients(each, step, some=False)
        for each in (optimizer, muon, adamw, magnitude):
            each.step()
    assert same(weights, reference)
    kept = [set(optimizer.state[each]) for each in weights]
    assert kept[:2] == [{"momentum_buffer"}] * 2
    assert all("exp_avg_sq" in names for names in kept[2:])
    # A magnitude in the shape of a matrix is none.
    wide = torch.nn.Parameter(torch.ones(4, 1))
    alone = make_optimizer(section("muon"), [ParameterGroup((wide,), decays=False)])
    wide.grad = torch.ones_like(wide)
    alone.step()
    assert "exp_avg" in alone.state[wide]


@pytest.mark.parametrize("name", sorted(AVERAGES_ITSELF))
def test_what_is_shown_is_the_average_and_the_trained_bits_come_back(name):
    weights = parameters()
    optimizer = made(weights, name)
    with evaluation_weights(optimizer):  # before the first step there is no average yet
        assert same(weights, parameters())
    rate = section(name).learning_rate
    train(optimizer, weights, range(1, 6), rate)
    trained = copies(weights)
    with evaluation_weights(optimizer):
        shown = copies(weights)
        with evaluation_weights(optimizer):
            assert same(weights, shown)
        assert same(weights, shown)
        assert not same(weights, trained)
        # y = beta1 x + (1 - beta1) z (Defazio et al. 2024, arXiv:2405.15682, eq. 3).
        for x, y, each in zip(shown, trained, weights, strict=True):
            between = 0.9 * x + 0.1 * optimizer.state[each]["z"]
            torch.testing.assert_close(between, y, rtol=1e-5, atol=1e-6)
    assert same(weights, trained)
    train(optimizer, weights, range(6, 8), rate)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if OPTIMIZERS[n].package])
def test_an_absent_package_is_one_message(name, monkeypatch):
    monkeypatch.setitem(sys.modules, OPTIMIZERS[name].package, None)
    with pytest.raises(InputError) as error:
        require_optimizer(name)
    assert f"training.optimizer.name is {name}" in error.value.found
    assert 'pip install "adapter-trainer[optimizers]"' in error.value.remedy
    with pytest.raises(InputError):
        make_optimizer(section(name), [ParameterGroup(tuple(parameters()))])


@pytest.mark.parametrize("name", ["came", "prodigy"])
def test_a_state_with_a_part_missing_is_refused(name):
    weights = parameters()
    optimizer = made(weights, name)
    train(optimizer, weights, range(1, 3), 1e-4)
    stored = optimizer_tensors(optimizer)
    lacking = min(key for key in stored if key.startswith("optimizer.0."))
    with pytest.raises(InputError, match="no "):
        load_optimizer_tensors(
            made(copies(weights), name), {k: v for k, v in stored.items() if k != lacking}
        )
    with pytest.raises(InputError, match="shape"):
        load_optimizer_tensors(
            made(copies(weights), name), {k: v[:1] if v.ndim else v for k, v in stored.items()}
        )
    with pytest.raises(InputError, match="a state of 4 parameters"):
        load_optimizer_tensors(
            made(copies(weights), name), stored | {"optimizer.9.step": torch.tensor(1)}
        )


def test_the_state_follows_its_parameters_into_other_groups():
    first = [torch.nn.Parameter(torch.full((2,), float(value))) for value in range(4)]
    grouped = [ParameterGroup(tuple(first))]
    before = make_optimizer(OptimizerSection(), grouped)
    for value, parameter in enumerate(first):
        parameter.grad = torch.full((2,), 10.0 + value)
    before.step()
    stored = optimizer_tensors(before)

    again = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
    regrouped = [
        ParameterGroup((again[1], again[3]), rate=0.5),
        ParameterGroup((again[0], again[2])),
    ]
    after = make_optimizer(OptimizerSection(), regrouped)
    load_optimizer_tensors(after, stored, [ParameterGroup(tuple(again))])
    for old, new in zip(first, again, strict=True):
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(before.state[old][name], after.state[new][name])
    wrong = make_optimizer(OptimizerSection(), regrouped)
    load_optimizer_tensors(wrong, stored)
    assert not torch.equal(before.state[first[0]]["exp_avg"], wrong.state[again[0]]["exp_avg"])
