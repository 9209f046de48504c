"""What every family owes, by its record alone: predict, names, gradients, a full-size step."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch
from torch import nn

from tests.fixtures.combinations import each_once
from tests.fixtures.families import hosted, lacking, record, records
from tests.fixtures.family_inputs import made_inputs
from tests.fixtures.full_size import full_size_transformer, linear_layers
from tests.fixtures.recorded_calls import relative_error
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig, RunConfig
from trainer_core.config.adapter import AdapterKind
from trainer_core.families.registry import FAMILIES, get_family
from trainer_core.training.step_simulation import StepInputs, StepSimulation
from trainer_core.weights.diffusers_folder import read_json

KINDS = get_args(AdapterKind)
EDGE, TEXT = 1024, 256
"""Pixels of an image's side, and tokens of a text, of the simulated full-size step."""


def quick_first(cases):
    """Cases, of which all but a family's first run in the whole suite only."""
    seen = {PROFILED, *LIKE_ANOTHER}
    marked = []
    for case in cases:
        marks = pytest.mark.exhaustive if case[0] in seen else ()
        seen.add(case[0])
        marked.append(pytest.param(*case, marks=marks))
    return marked


# Three steps of Qwen-Image's vision model; test_qwen_image.py has them, variant by variant.
STEPS = [
    pytest.param(name, marks=pytest.mark.exhaustive) if name == "qwen_image" else name
    for name in records()
]


@pytest.fixture(scope="module", params=STEPS)
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
        return get_family(kept.name).predict(transformer, **{**given, **changes})


def test_every_step_is_the_pipelines_step(pipeline_steps):
    kept, steps = pipeline_steps
    for step in steps:
        found = predicted(kept, step)
        assert found.shape == step.velocity.shape == step.noisy.shape
        assert relative_error(found.float(), step.velocity.float()) <= 1e-5


def test_the_steps_show_what_a_pipeline_does_differently(pipeline_steps):
    """Texts of two lengths, all numbers of controls, a time that half precision rounds."""
    kept, steps = pipeline_steps
    assert any(len(step.conditionings) > 1 for step in steps)
    assert {step.noisy.dtype for step in steps} == {torch.float32, torch.bfloat16}
    assert any(step.controls for step in steps) == bool(kept.controls)
    assert any(not step.controls for step in steps)


def test_a_step_at_another_sigma_or_text_is_another(pipeline_steps):
    kept, steps = pipeline_steps
    step = next(each for each in steps if len(each.conditionings) > 1)
    exchanged = list(reversed(step.conditionings))
    for changes in ({"sigma": step.sigma * 0.9}, {"conditionings": exchanged}):
        assert relative_error(predicted(kept, step, **changes), step.velocity) > 1e-4


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
        key = family.key_map.to_native(module)
        if key is None:
            assert any(re.fullmatch(item, module) for item in family.unexportable), module
            continue
        found, tensor = places[number + 1]
        assert key.name == found
        own = [int(each) for each in (tensor[:, 0] // 1_000_000).unique()]
        assert key.part == (len(own) > 1)
        if not key.part:
            assert family.key_map.to_module(found) == module
            assert torch.equal(tensor, state[path]), f"{module} is turned, and needs unexportable"
            continue
        parts = family.key_map.parts(found)
        order = [
            list(state)[int(each) - 1] for each in (tensor[:, 0] // 1_000_000).unique_consecutive()
        ]
        assert [f"{part.module}.weight" for part in parts] == order
        shares = {len(state[f"{part.module}.weight"]) / part.share for part in parts}
        assert len(shares) == 1


@pytest.mark.parametrize("name", records())
def test_presets_reach_the_counted_layers_at_full_size(name):
    family, names = get_family(name), linear_layers(full_size_transformer(name))
    assert set(record(name).counts) == set(family.presets)
    for preset, patterns in family.presets.items():
        found = [each for each in names if any(re.fullmatch(item, each) for item in patterns)]
        assert len(found) == record(name).counts[preset], preset
        for pattern in patterns:
            assert any(re.fullmatch(pattern, each) for each in names), pattern


def velocity_of(kept, transformer):
    noisy, sigma, conditioning, controls = made_inputs(kept)
    family = get_family(kept.name)
    return family.predict(transformer, noisy, sigma, [conditioning], controls, kept.guidance)


def without_gradient(kept, train):
    """Linear layers of the small model whose weights get no gradient, or only zeros."""
    family, transformer = get_family(kept.name), kept.small()
    family.prepare(transformer)
    transformer.requires_grad_(True).train(train)
    velocity = velocity_of(kept, transformer)
    velocity.square().mean().backward()
    return {
        name
        for name in linear_layers(transformer)
        if (grad := transformer.get_submodule(name).weight.grad) is None or not grad.any()
    }


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", records())
def test_every_layer_gets_a_gradient_but_the_unused(name, train):
    kept, family = record(name), get_family(name)
    transformer = kept.small()
    unused = family.unused_layers(transformer)
    adapted = {
        each
        for each in linear_layers(transformer)
        if any(re.fullmatch(item, each) for item in family.presets["all_linear"])
    }
    missing = without_gradient(kept, train) & adapted
    assert missing == kept.unused
    assert missing == {n for n in adapted if any(re.fullmatch(item, n) for item in unused)}


@pytest.mark.parametrize("name", records())
def test_an_adapter_in_evaluation_mode_gets_gradients_too(name):
    kept, family = record(name), get_family(name)
    transformer = kept.small()
    family.prepare(transformer)
    adapter = attach(
        transformer,
        AdapterConfig(kind="lora", rank=2, targets="all_linear"),
        presets=family.presets,
        unused=family.unused_layers(transformer),
        shared=family.shared_inputs,
    )
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.fill_(0.01)
    velocity_of(kept, transformer).square().mean().backward()
    assert all(parameter.grad is not None for parameter in adapter.parameters())


ADAPTERS = {
    **{kind: {"kind": kind} for kind in KINDS},
    "lora with DoRA": {"kind": "lora", "dora": True},
    "loha with DoRA": {"kind": "loha", "dora": True},
    "lokr with DoRA": {"kind": "lokr", "dora": True},
}
# A magnitude belongs to a layer, whatever model has it: each kind of it with some families.
MAGNITUDES = each_once(records(), [name for name in ADAPTERS if name not in KINDS])
SIMULATED = [
    (name, kind)
    for name in records()
    for kind in ADAPTERS
    if kind in KINDS or (name, kind) in MAGNITUDES
]
PROFILED = "z_image"
"""Whose full-size step runs in the quick set with its profile instead."""
LIKE_ANOTHER = {"flux"}
"""Whose full-size step runs in the whole suite only, as FLUX.2's goes the same way."""


@pytest.mark.parametrize(("name", "kind"), quick_first(SIMULATED))
def test_a_step_of_the_published_model_has_no_error_of_shapes(name, kind):
    """Forward, backward and optimizer on tensors that have sizes and no numbers."""
    found = simulation(name, ADAPTERS[kind]).step()
    assert found.adapter > 0
    assert found.flops > 1e12


def simulation(name, adapter):
    """A LoRA or another adapter of rank 4 on the published model, whose step is pretended."""
    family = get_family(name)
    config = RunConfig.model_validate({"family": name, "adapter": {"rank": 4, **adapter}})
    vae = read_json(family.file.configs / family.variants[0] / "vae" / "config.json")
    channels, pixels = family.latents(vae)
    image = (channels, EDGE // pixels, EDGE // pixels)
    count = 1 + bool(record(name).controls)
    inputs = StepInputs((image,) * count, TEXT, torch.bfloat16, fused=False)
    return StepSimulation(full_size_transformer(name), family, config, inputs)


@pytest.mark.parametrize(
    "name",
    [
        each if each == PROFILED else pytest.param(each, marks=pytest.mark.exhaustive)
        for each in records()
    ],
)
def test_a_profile_of_the_published_model_tells_of_every_choice(name):
    """Also of blocks that no gradient reaches, such as Z-Image's refiners with `default`."""
    made = simulation(name, {"targets": "default"})
    profile = made.profile()
    assert profile.flops > 1e12
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
