"""A concept slider: its samples, its targets, one step against a textbook, and a whole run."""

import ast
import contextlib

import pytest
import torch
from runs import merge, run_config
from test_preservation_kinds import begun

from trainer_core.data.cache.slider_dataset import slider_size
from trainer_core.errors import ConfigError
from trainer_core.inference.pipeline import open_pipeline
from trainer_core.training import SingleProcess
from trainer_core.training.objectives.slider import restoring_strength
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.training.setup.step_inputs import base_answers
from trainer_core.training.step.make_loss import times_trained
from trainer_core.training.step.split_batches import SplitBatches
from trainer_core.training.step.step_plan import StepPlan

CPU = torch.device("cpu")
RED, BLUE, NEUTRAL = (
    f"a {each} circle on a white background" for each in ("red", "blue", "purple")
)
SLIDER = {
    "positive": RED,
    "negative": BLUE,
    "neutral": [NEUTRAL],
    "strength": 1.5,
    "images": 4,
    "steps": 2,
}
SHAPES = ("circle on a white background", "square on a black background")
SEVERAL = {"positive": "a red {}", "negative": "a blue {}", "neutral": list(SHAPES)}
DATASET = {"path": "", "caption_dropout": 0.0, "slider": SLIDER}
PLAIN = {
    "adapter": {"kind": "lora", "dropout": 0.0, "rank": 2},
    "training": {"batch_size": 2, "gradient_accumulation_steps": 1, "steps": 3},
}


def slider_config(folder, cache, **overrides):
    return run_config(folder, cache, **merge(merge(PLAIN, {"dataset": DATASET}), overrides))


def base_velocity(run, noisy, sigmas, text):
    """What a base says that never had an adapter."""
    data = run.data
    bare = data.family.load_transformer(data.location, torch.float32, CPU)
    with torch.no_grad():
        texts = [text] * len(noisy)
        return data.family.prediction.predict(bare, noisy, torch.tensor(sigmas), texts, [], 1.0)


def with_delta(run, sign):
    """The base with ``W + sign * s * B A`` written into its weights by hand, B and A trainable."""
    data, adapter = run.data, run.state.adapter
    model = data.family.load_transformer(data.location, torch.float32, CPU)
    factors = {}
    for name, layer in adapter.layers.items():
        down, up = (layer.factors()[each].detach().clone() for each in ("lora_down", "lora_up"))
        factors[name] = (down.requires_grad_(), up.requires_grad_())
        plain, scale = model.get_submodule(name), layer.scaling["default"]
        weight = plain.weight.detach()
        del plain.weight
        plain.weight = weight + sign * scale * factors[name][1] @ factors[name][0]
    return model, factors


@pytest.mark.parametrize("checkpointing", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_loss_and_gradient_of_a_step_are_those_of_the_textbook(tmp_path, cache, checkpointing):
    config = slider_config(tmp_path, cache, memory={"gradient_checkpointing": checkpointing})
    with contextlib.ExitStack() as at_end:
        run, plan, maker = begun(config, at_end)
        maker = base_answers(run, maker)
        of_step = StepPlan(plan, times_per_sample=times_trained(config)).micro_batches(1)
        assert list(of_step) == [0, 1]
        losses = []
        with restoring_strength(run.state.adapter):
            for micro in of_step:
                part = maker(1, micro)
                losses.append(float(part.loss.detach()))
                assert run.state.adapter.strength == (1.0, -1.0)[micro]
                part.loss.backward()
        assert run.state.adapter.strength == 1.0
        (points,) = maker.prepare(1, 0)
        given = points.noisy, points.sigmas
        texts = points.conditionings[0], *points.directions[0]
        neutral, positive, negative = (base_velocity(run, *given, text) for text in texts)
        expected = {}
        for sign, loss in zip((1.0, -1.0), losses, strict=True):
            model, factors = with_delta(run, sign)
            target = neutral.double() + sign * 1.5 * (positive.double() - negative.double())
            velocity = run.data.family.prediction.predict(
                model, points.noisy, torch.tensor(points.sigmas), points.conditionings, [], 1.0
            )
            textbook = (velocity.double() - target).square().mean(dim=(1, 2, 3)).sum()
            assert loss == pytest.approx(float(textbook), rel=1e-5)
            textbook.backward()
            for name, pair in factors.items():
                before = expected.get(name, (0.0, 0.0))
                expected[name] = tuple(b + f.grad for b, f in zip(before, pair, strict=True))
        for name, layer in run.state.adapter.layers.items():
            for key, wanted in zip(("lora_down", "lora_up"), expected[name], strict=True):
                found = layer.factors()[key].grad
                assert (found - wanted).norm() <= 1e-4 * wanted.norm(), (name, key)


@pytest.mark.exhaustive
def test_each_of_several_neutral_prompts_is_trained_towards_its_own(tmp_path, cache):
    config = slider_config(tmp_path, cache, dataset={"slider": SEVERAL})
    with open_pipeline(config, has_controls=False) as pipeline:
        texts = {
            each: pipeline.request(each, 0).conditioning
            for shape in SHAPES
            for each in (shape, f"a red {shape}", f"a blue {shape}")
        }
    seen = dict.fromkeys(SHAPES, 0)
    with contextlib.ExitStack() as at_end:
        run, plan, maker = begun(config, at_end)
        maker = base_answers(run, maker)
        assert plan.samples_per_epoch == len(SHAPES) * SLIDER["images"]
        for step in range(1, plan.samples_per_epoch // 2 + 1):
            (points,) = maker.prepare(step, 0)
            neutral = [neutral_prompt(name) for name in points.names]
            for each in neutral:
                seen[each] += 1
            if step > 2:
                continue
            (answered,) = maker.fill_targets([points], step, 0)
            velocities = [
                torch.cat(
                    [
                        base_velocity(run, points.noisy[n : n + 1], [sigma], texts[form(each)])
                        for n, (each, sigma) in enumerate(zip(neutral, points.sigmas, strict=True))
                    ]
                )
                for form in (str, "a red {}".format, "a blue {}".format)
            ]
            expected = velocities[0] + 1.5 * (velocities[1] - velocities[2])
            # Several prompts in a batch and one are summed in other orders, which the 1.5 enlarges.
            assert torch.allclose(answered.target, expected, atol=1e-4)
    assert seen == dict.fromkeys(SHAPES, SLIDER["images"]), "an epoch has every image once"


def neutral_prompt(name):
    """Of a sample, which is named `slider: 'PROMPT' NUMBER`."""
    return ast.literal_eval(name.removeprefix("slider: ").rpartition(" ")[0])


def merge_config(config, changes):
    return type(config).model_validate(merge(config.model_dump(mode="json"), changes))


def test_a_finished_cache_is_trained_without_encoders(tmp_path, cache):
    config = slider_config(tmp_path, cache)
    listed = save_manifest(config, prepare(config, SilentObserver(), SingleProcess(CPU)))
    direct = prepare(config, SilentObserver(), SingleProcess(CPU))
    finished = merge_config(config, {"cache": {"manifest": str(listed)}})
    data = prepare(finished, SilentObserver(), SingleProcess(CPU))
    assert data.dataset.identity == direct.dataset.identity
    assert data.dataset.slider == direct.dataset.slider
    for other in ({"positive": "something else"}, {"images": 5}):
        changed = merge_config(finished, {"dataset": {"slider": other}})
        with pytest.raises(ConfigError, match=r"dataset\.slider"):
            prepare(changed, SilentObserver(), SingleProcess(CPU))
    off = type(config.dataset.slider)()
    dataset = finished.dataset.model_copy(update={"slider": off})
    images = finished.model_copy(update={"dataset": dataset})
    with pytest.raises(ConfigError, match="asks for images"):
        prepare(images, SilentObserver(), SingleProcess(CPU))


def test_an_edit_base_is_refused_and_images_are_the_largest_square(tmp_path, cache):
    config = slider_config(tmp_path, cache)
    # What a run file cannot say is found where the base is known.
    edits = config.model_copy(update={"base": config.base.model_copy(update={"variant": "edit"})})
    with pytest.raises(ConfigError, match=r"base\.variant|trained as edit"):
        prepare(edits, SilentObserver(), SingleProcess(CPU))
    assert (slider_size(100, 32).width, slider_size(100, 32).height) == (96, 96)
    with pytest.raises(ConfigError, match="at least 32"):
        slider_size(16, 32)


def test_without_a_negative_prompt_the_base_is_asked_twice_and_a_step_may_be_divided(
    tmp_path, cache
):
    config = slider_config(tmp_path, cache, dataset={"slider": {"negative": ""}})
    with contextlib.ExitStack() as at_end:
        run, _, maker = begun(config, at_end)
        maker = base_answers(run, maker)
        (points,) = maker.prepare(1, 0)
        (answered,) = maker.fill_targets([points], 1, 0)
        given = points.noisy, points.sigmas
        texts = points.conditionings[0], points.directions[0][0]
        neutral, positive = (base_velocity(run, *given, text) for text in texts)
        assert torch.allclose(answered.target, neutral + 1.5 * (positive - neutral), atol=1e-5)
        assert not answered.target.requires_grad
        # A step that begins again in parts is asked for again.
        split = SplitBatches(maker)
        with restoring_strength(run.state.adapter):
            (whole,) = split(1, 0)
            split.halve()
            parts = list(split(1, 0))
        assert [len(part.names) for part in parts] == [1, 1]
        assert sum(float(part.loss) for part in parts) == pytest.approx(float(whole.loss), rel=1e-5)
        # Who switches the adapter off sees the base.
        run.state.adapter.strength = 0.0
        with torch.no_grad():
            maker(1, 0)
        assert run.state.adapter.strength == 0.0
