"""Preservation that asks the base in each step, or for a class word."""

import contextlib
from dataclasses import replace

import pytest
import torch
from runs import CancelAfter, merge, run_config

from tests.fixtures.combinations import pairwise, some
from trainer_core.errors import ConfigError
from trainer_core.offload.machine import Machine
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import CacheProgress, SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.training.setup.load import load
from trainer_core.training.setup.starting_point import find_start
from trainer_core.training.setup.step_inputs import base_answers, batch_plan, micro_batch_loss
from trainer_core.training.step.noise_draws import stratified_draw

CPU = torch.device("cpu")
KINDS = {
    "blank": {"preservation": {"share": 0.5, "kind": "blank"}, "caption_dropout": 0.0},
    "output": {
        "preservation": {"share": 0.5, "kind": "output", "class_word": "square"},
        "trigger_word": "diamond",
    },
}
ONE = {"training": {"batch_size": 4, "gradient_accumulation_steps": 1}}
WAYS = {
    "lokr, a batch that is cut": {"training": {"batch_size": 2}},
    "lora, swapped": merge(
        ONE,
        {
            "adapter": {"kind": "lora", "dora": True, "init": "pissa", "dropout": 0.0},
            "memory": {"gradient_checkpointing": True, "blocks_to_swap": 3},
        },
    ),
    "loha, module dropout": merge(ONE, {"adapter": {"kind": "loha", "module_dropout": 0.5}}),
    "oft, exact delta off": merge(ONE, {"adapter": {"kind": "oft", "dropout": 0.0}}),
}


CASES = {
    f"{way.split(',')[0]} {kind} {task}": (way, kind, task)
    for way, kind, task in pairwise(WAYS, KINDS, ("generate", "edit"))
}


class Passes:
    """A base that counts how it is asked, and whether with a gradient."""

    def __init__(self, predict):
        self.predict, self.asked = predict, []

    def __call__(self, noisy, *given):
        self.asked.append((len(noisy), torch.is_grad_enabled()))
        return self.predict(noisy, *given)


def begun(config, at_end):
    """A run with an adapter that changes something, and what computes its steps."""
    processes = SingleProcess(CPU)
    data = prepare(config, SilentObserver(), processes)
    start = find_start(config, data.family, "fp32", processes)
    run = load(
        config,
        observer=SilentObserver(),
        processes=processes,
        data=data,
        precision="fp32",
        start=start,
        base="base",
        machine=Machine(),
        at_end=at_end,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in run.state.adapter.parameters():
            each.add_(0.05 * torch.randn(each.shape, generator=generator))
    plan = batch_plan(run)
    return run, plan, micro_batch_loss(run, plan, (0, 1))


def expected_targets(run, maker, points):
    """What a base says that never had an adapter, at the twins of a pass; and its own noise."""
    data, count = run.data, points.base_targets
    bare = data.family.load_transformer(data.location, torch.float32, CPU)
    sigmas = torch.tensor(points.sigmas[-count:])
    controls = [each[-count:] for each in points.controls]
    with torch.no_grad():
        return data.family.prediction.predict(
            bare, points.noisy[-count:], sigmas, points.conditionings[-count:], controls, 1.0
        )


@pytest.mark.parametrize("case", some(CASES, "lokr output edit", "lora blank generate"))
def test_the_target_is_what_a_bare_base_says_to_the_bit(tmp_path, cache, images, case):
    way, kind, task = CASES[case]
    dataset = {"path": str(images[task]), **KINDS[kind]}
    config = run_config(tmp_path, cache, **merge(WAYS[way], {"dataset": dataset}))
    with contextlib.ExitStack() as at_end:
        run, plan, maker = begun(config, at_end)
        asking, asked = base_answers(run, maker), 0
        for micro in plan.dealt(1):
            (points,) = maker.prepare(1, micro)
            (answered,) = asking.fill_targets([points], 1, micro)
            if not points.base_targets:
                assert answered is points
                continue
            asked += points.base_targets
            twins = answered.target[-points.base_targets :]
            assert torch.equal(twins, expected_targets(run, maker, points))
            assert not answered.target.requires_grad
            assert torch.equal(
                answered.target[: -points.base_targets], points.target[: -points.base_targets]
            )
            assert run.state.adapter.strength == 1.0
            # The adapter does change what is predicted there, which is what is learned from.
            with torch.no_grad():
                changed = maker.predict(*points.inputs(CPU))[-points.base_targets :]
            assert not torch.allclose(changed, twins, atol=1e-4)
        assert asked == 2
        check_draws(run, maker, plan)


def check_draws(run, maker, plan):
    """Each twin has noise, noise level, controls and side of a sample of the step; not the text."""
    passes = [maker.prepare(1, micro)[0] for micro in plan.dealt(1)]
    parts = [plan.part(1, micro, (0, 1)) for micro in plan.dealt(1)]
    visits = {
        position: (index, turn)
        for part in parts
        for position, index, turn in zip(part.positions, part.indices, part.turns, strict=True)
    }
    own = {}
    for points in passes:
        for row, position in enumerate(points.positions):
            if position >= 0:
                own[points.sigmas[row]] = points, row, position
    for points in passes:
        for row in range(len(points.sigmas) - points.base_targets, len(points.sigmas)):
            beside, at, position = own[points.sigmas[row]]
            assert torch.equal(points.noisy[row], beside.noisy[at])
            assert all(
                torch.equal(a[row], b[at])
                for a, b in zip(points.controls, beside.controls, strict=True)
            )
            assert points.positions[row] == -1
            assert points.weights[row] == 1.0
            draw = stratified_draw(run.config.seed, *visits[position])
            drawn = draw.normal_(torch.empty(points.noisy[row].shape))
            clean = beside.noisy[at] - points.sigmas[row] * beside.target[at]
            noise = clean + beside.target[at]
            assert torch.allclose(noise, drawn, atol=1e-4)


def test_a_step_asks_once_more_and_learns_from_the_adapted_pass_alone(tmp_path, cache):
    config = run_config(
        tmp_path, cache, dataset=KINDS["blank"], **merge(ONE, {"adapter": {"dropout": 0.0}})
    )
    with contextlib.ExitStack() as at_end:
        run, _, maker = begun(config, at_end)
        asking, parameters = base_answers(run, maker), run.state.adapter.parameters()
        predict = Passes(maker.predict)
        counted = base_answers(run, replace(maker, predict=predict))
        found = torch.autograd.grad(counted(1, 0).loss, parameters, allow_unused=True)
        # Two of four are twins: one pass of them alone, and the pass that was there before.
        assert predict.asked == [(2, False), (4, True)]
        # By hand: own samples, and twins towards a constant.
        (points,) = maker.prepare(1, 0)
        bare = expected_targets(run, maker, points)
        velocity = maker.predict(*points.inputs(CPU)).float()
        target = torch.cat([points.target[:2], bare])
        loss = ((velocity - target) ** 2).flatten(1).mean(1).sum()
        wanted = torch.autograd.grad(loss, parameters, allow_unused=True)
        assert asking(1, 0).loss.item() == pytest.approx(loss.item(), rel=1e-6)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.exhaustive
def test_a_finished_cache_trains_twins_and_knows_its_class_word(tmp_path, cache):
    training = {"steps": 2}
    config = run_config(tmp_path, cache, dataset=KINDS["output"], training=training)
    manifest = save_manifest(config, prepare(config, SilentObserver(), SingleProcess(CPU)))
    listed = config.cache.model_copy(update={"manifest": str(manifest)})
    direct = train(config)
    assert train(config.model_copy(update={"cache": listed})).losses == direct.losses
    other = merge(KINDS["output"], {"preservation": {"class_word": "circle"}})
    wrong = run_config(tmp_path, cache, dataset=other, training=training)
    with pytest.raises(ConfigError, match=r"is 'circle', and the finished cache .* 'square'"):
        train(wrong.model_copy(update={"cache": listed}))
    # The empty text is in every cache; prompts for another kind are left alone.
    kept = {"preservation": {"share": 0.5, "count": 2, "steps": 1}, "caption_dropout": 0.0}
    before = run_config(tmp_path, cache, dataset=kept, training=training)
    manifest = save_manifest(before, prepare(before, SilentObserver(), SingleProcess(CPU)))
    blank = run_config(tmp_path, cache, dataset=KINDS["blank"], training=training)
    listed = config.cache.model_copy(update={"manifest": str(manifest)})
    found = train(blank.model_copy(update={"cache": listed}))
    assert found.losses == train(blank).losses
    with pytest.raises(ConfigError, match="and the finished cache was encoded with none"):
        train(config.model_copy(update={"cache": listed}))


@pytest.mark.exhaustive
def test_the_kind_class_makes_images_of_the_class_word(tmp_path, cache):
    kept = {"share": 0.5, "kind": "class", "class_word": "square", "count": 3, "steps": 2}
    observer = CancelAfter(99)
    config = run_config(
        tmp_path, tmp_path / "cache", dataset={"preservation": kept}, training={"steps": 2}
    )
    train(config, observer)
    told = [e for e in observer.events if isinstance(e, CacheProgress)]
    assert (told[-1].total, told[-1].what) == (6, "samples of what the base does, to keep it")
    data = prepare(config, SilentObserver(), SingleProcess(CPU))
    assert data.dataset.preserved[0].prompt == "a red square on a blue background"
    manifest = save_manifest(config, data)
    other = merge(config.model_dump(mode="json"), {
        "dataset": {"preservation": {"class_word": "circle"}}, "cache": {"manifest": str(manifest)},
    })  # fmt: skip
    with pytest.raises(ConfigError, match="asks for 3 prompts that are not the 3"):
        train(type(config).model_validate(other))
