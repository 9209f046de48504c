"""What every family owes, by its record alone: predict, names, gradients, a full-size step."""

import re
from typing import get_args

import pytest
import torch
from torch import nn

from tests.fixtures.combinations import each_once, rarely, some
from tests.fixtures.families import hosted, lacking, record, records
from tests.fixtures.family_inputs import made_inputs
from tests.fixtures.full_size import full_size_transformer, linear_layers
from tests.fixtures.recorded_calls import relative_error
from trainer_core.config import RunConfig
from trainer_core.config.adapter import AdapterKind
from trainer_core.families.registry import FAMILIES, get_family
from trainer_core.training.memory.short_base import StepInputs
from trainer_core.training.memory.step_simulation import StepSimulation
from trainer_core.weights.diffusers_folder import read_json

KINDS = get_args(AdapterKind)
IN_HALF = 2.0**-7
"""Two roundings of bfloat16: products of other shapes add up in other orders on some processors. A
time that is rounded otherwise changes the velocity by more than a tenth.
"""

EDGE, TEXT = 1024, 256
"""Pixels of an image's side, and tokens of a text, of the simulated full-size step."""


@pytest.fixture(scope="module", params=records())
def pipeline_steps(request, tmp_path_factory):
    """A family, and every step that Diffusers' own pipeline made."""
    kept = record(request.param)
    return kept, list(kept.steps(tmp_path_factory.mktemp(request.param)))


def predicted(kept, step, **changes):
    given = {
        "noisy": step.noisy,
        "sigma": step.sigma,
        "conditionings": step.conditionings,
        "controls": step.controls,
        "guidance": step.guidance,
    }
    transformer = step.transformer or kept.small()
    with torch.no_grad():
        return get_family(kept.name).prediction.predict(transformer, **{**given, **changes})


def test_every_step_is_the_pipelines_step(pipeline_steps):
    kept, steps = pipeline_steps
    for step in steps:
        found = predicted(kept, step)
        assert found.shape == step.velocity.shape == step.noisy.shape
        error = relative_error(found.float(), step.velocity.float())
        assert error <= (1e-5 if found.dtype == torch.float32 else IN_HALF)


def test_every_input_of_a_step_reaches_its_velocity(pipeline_steps):
    """Sigma, each part of a text, guidance, every control image and their order."""
    kept, steps = pipeline_steps
    assert {step.noisy.dtype for step in steps} == {torch.float32, torch.bfloat16}
    assert any(not step.controls for step in steps)
    step = next(each for each in steps if len(each.conditionings) > 1)
    one, other = step.conditionings[:2]
    changes = [(step, {"sigma": step.sigma * 0.9})]
    for part in one:
        exchanged = [{**one, part: other[part]}, {**other, part: one[part]}]
        changes.append((step, {"conditionings": exchanged}))
    if get_family(kept.name).prediction.takes_guidance(step.transformer or kept.small()):
        changes.append((step, {"guidance": step.guidance + 1.0}))
    if kept.controls:
        most = max(steps, key=lambda each: len(each.controls))
        changes.append((most, {"controls": most.controls[1:]}))
        if len(most.controls) > 1:
            changes.append((most, {"controls": most.controls[::-1]}))
    for given, changed in changes:
        assert relative_error(predicted(kept, given, **changed), given.velocity) > 1e-4, changed


@pytest.mark.parametrize("name", records())
def test_texts_have_the_shapes_that_their_family_tells(name):
    kept = record(name)
    told = get_family(name).text.conditioning_shapes(kept.small().config, kept.text)
    made = kept.conditioning(torch.Generator(), kept.text)
    assert {part: tuple(tensor.shape) for part, tensor in made.items()} == told


LENGTHS = {"flux": (40, 40)}
"""Of the texts of a batch, where the encoders give all of one length."""


@pytest.mark.parametrize("name", some(records(), "z_image"))
def test_a_batch_is_its_samples_with_and_without_checkpointing(name):
    kept, family = record(name), get_family(name)
    generator = torch.Generator().manual_seed(0)
    texts = [kept.conditioning(generator, length) for length in LENGTHS.get(name, (5, 40))]
    noisy, *controls = (
        torch.randn(2, *shape, generator=generator) for shape in (kept.latents, *kept.controls)
    )
    sigma = torch.tensor([0.2, 0.9])

    def predict(transformer, at, given, texts=texts):
        shown = [each[at] for each in controls]
        return family.prediction.predict(
            transformer, given[at], sigma[at], texts[at], shown, kept.guidance
        )

    whole, singles = slice(None), (slice(0, 1), slice(1, 2))
    found, passes = [], []
    for parts, again in ((singles, False), ((whole,), False), ((whole,), True)):
        transformer = kept.small().requires_grad_(False)
        family.layers.prepare(transformer)
        if again:
            family.layers.enable_checkpointing(transformer.train())
        block = transformer.get_submodule(family.layers.repeated_blocks[0])[0]
        calls = []
        block.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        given = noisy.clone().requires_grad_()
        velocity = torch.cat([predict(transformer, at, given) for at in parts])
        velocity.square().sum().backward()
        found.append((velocity.detach(), given.grad))
        passes.append(len(calls))
    # Qwen-Image 2.1 computes texts of other lengths one after another.
    assert passes in ([2, 1, 2], [2, 2, 4])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert relative_error(two, one) <= 1e-5
    with torch.no_grad():
        exchanged = predict(kept.small(), whole, noisy, texts[::-1])
    assert relative_error(exchanged, found[0][0]) > 1e-3


def numbered_state(transformer):
    """The weights' names and shapes, and in place of numbers which weight it is, and which row."""
    state = {}
    for number, (name, tensor) in enumerate(transformer.state_dict().items()):
        rows = torch.arange(tensor.shape[0] if tensor.ndim else 1) + 1_000_000 * (number + 1)
        shape = (-1, *(1,) * (tensor.ndim - 1)) if tensor.ndim else ()
        state[name] = rows.double().reshape(shape).expand(tensor.shape)
    return state


@pytest.mark.parametrize("name", hosted())
def test_layers_have_the_names_and_rows_that_the_records_converter_gives(name):
    """Every Linear layer of the small model, and where in a fused one: by numbers in its rows."""
    kept, family = record(name), get_family(name)
    transformer = kept.small()
    state = numbered_state(transformer)
    native = kept.host.to_native(state)
    places = {}
    for key, tensor in native.items():
        if key.endswith(".weight") and tensor.ndim == 2:
            for first in (tensor[:, 0] // 1_000_000).unique().tolist():
                places[int(first)] = (key.removesuffix(".weight"), tensor)
    for number, path in enumerate(state):
        module = path.removesuffix(".weight")
        if not isinstance(transformer.get_submodule(path.rpartition(".")[0]), nn.Linear):
            continue
        if not path.endswith(".weight"):
            continue
        key = family.layers.key_map.to_native(module)
        if key is None:
            assert any(re.fullmatch(item, module) for item in family.layers.unexportable), module
            continue
        found, tensor = places[number + 1]
        assert key.name == found
        own = [int(each) for each in (tensor[:, 0] // 1_000_000).unique()]
        assert key.part == (len(own) > 1)
        if not key.part:
            assert family.layers.key_map.to_module(found) == module
            assert torch.equal(tensor, state[path]), f"{module} is turned, and needs unexportable"
            continue
        parts = family.layers.key_map.parts(found)
        order = [
            list(state)[int(each) - 1] for each in (tensor[:, 0] // 1_000_000).unique_consecutive()
        ]
        assert [f"{part.module}.weight" for part in parts] == order
        shares = {len(state[f"{part.module}.weight"]) / part.share for part in parts}
        assert len(shares) == 1


@pytest.mark.parametrize("name", records())
def test_presets_reach_the_counted_layers_at_full_size(name):
    family, names = get_family(name), linear_layers(full_size_transformer(name))
    assert set(record(name).counts) == set(family.layers.presets)
    for preset, patterns in family.layers.presets.items():
        found = [each for each in names if any(re.fullmatch(item, each) for item in patterns)]
        assert len(found) == record(name).counts[preset], preset
        for pattern in patterns:
            assert any(re.fullmatch(pattern, each) for each in names), pattern


def velocity_of(kept, transformer):
    noisy, sigma, conditioning, controls = made_inputs(kept)
    family = get_family(kept.name)
    return family.prediction.predict(
        transformer, noisy, sigma, [conditioning], controls, kept.guidance
    )


def without_gradient(kept, train):
    """Linear layers of the small model whose weights get no gradient, or only zeros."""
    family, transformer = get_family(kept.name), kept.small()
    family.layers.prepare(transformer)
    transformer.requires_grad_(True).train(train)
    velocity = velocity_of(kept, transformer)
    velocity.square().mean().backward()
    return {
        name
        for name in linear_layers(transformer)
        if (grad := transformer.get_submodule(name).weight.grad) is None or not grad.any()
    }


@pytest.mark.parametrize("train", some(["evaluation", "training"], "training"))
@pytest.mark.parametrize("name", records())
def test_every_layer_gets_a_gradient_but_the_unused(name, train):
    kept, family = record(name), get_family(name)
    transformer = kept.small()
    unused = family.layers.unused(transformer)
    adapted = {
        each
        for each in linear_layers(transformer)
        if any(re.fullmatch(item, each) for item in family.layers.presets["all_linear"])
    }
    missing = without_gradient(kept, train == "training") & adapted
    assert missing == kept.unused
    assert missing == {n for n in adapted if any(re.fullmatch(item, n) for item in unused)}


ADAPTERS = {
    **{kind: {"kind": kind} for kind in KINDS},
    "lora with DoRA": {"kind": "lora", "dora": True},
    "loha with DoRA": {"kind": "loha", "dora": True},
    "lokr with DoRA": {"kind": "lokr", "dora": True},
}


# Seconds each: every family and every adapter in some case. In the quick set is the profile below,
# which makes such a step too.
@pytest.mark.parametrize(("name", "kind"), rarely(each_once(records(), ADAPTERS)))
def test_a_step_of_the_published_model_has_no_error_of_shapes(name, kind):
    """Forward, backward and optimizer on tensors that have sizes and no numbers."""
    found = simulation(name, ADAPTERS[kind]).step()
    assert found.adapter > 0
    assert found.work.flops > 1e12


def simulation(name, adapter):
    """An adapter of rank 4 on the published model, whose step is pretended."""
    family = get_family(name)
    config = RunConfig.model_validate({"family": name, "adapter": {"rank": 4, **adapter}})
    vae = read_json(family.files.single_file.configs / family.variants[0] / "vae" / "config.json")
    channels, pixels = family.latents.of_config(vae)
    image = (channels, EDGE // pixels, EDGE // pixels)
    count = 1 + bool(record(name).controls)
    inputs = StepInputs((image,) * count, TEXT, torch.bfloat16, fused=False)
    return StepSimulation(full_size_transformer(name), family, config, inputs)


@pytest.mark.parametrize("name", some(records(), "z_image"))
def test_a_profile_of_the_published_model_tells_of_every_choice(name):
    """Also of blocks that no gradient reaches, such as Z-Image's refiners with `default`."""
    made = simulation(name, {"targets": "default"})
    profile = made.profile()
    assert profile.work.flops > 1e12
    every = range(len(profile.blocks))
    assert profile.activations(every) == made.step().activations
    assert profile.activations(every) < profile.activations(())
    assert 0 < profile.activations(every, in_ram=True) <= profile.activations(every)
    waiting = [block.inputs for block in profile.blocks]
    assert min(waiting) >= 0
    reached = [size for size, block in zip(waiting, profile.blocks, strict=True) if block.more]
    assert min(reached) > 0, "an address that was used again hides a block's input"


def test_every_family_has_a_record():
    assert set(records()) == set(FAMILIES) - lacking()
    for name in records():
        assert record(name).name == name
