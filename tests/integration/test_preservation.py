"""Prior preservation: the base is held to its own predictions, which are computed once."""

import shutil

import numpy as np
import pytest
import torch
from integration.runs import run_config

from tests.fixtures.combinations import some
from trainer_core.config.defaults import resolved_length
from trainer_core.data.cache.remove_unused import remove_unused
from trainer_core.demo.run import dataset_folder
from trainer_core.diffusion.flow import sample_euler
from trainer_core.families.registry import get_family
from trainer_core.training import SingleProcess, train
from trainer_core.training.objectives.preservation_trajectories import (
    compute_missing,
    plan_trajectories,
)
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare

HALF = {"preservation": {"share": 0.5, "count": 4, "steps": 3}}
CPU = torch.device("cpu")


def planned(folder, cache, images=None, **preservation):
    """A plan on the embedded base, and the base."""
    config = run_config(
        folder,
        cache,
        dataset={
            "path": str(images or dataset_folder("generate")),
            "preservation": HALF["preservation"] | preservation,
        },
    )
    data = prepare(config, SilentObserver(), SingleProcess(CPU))
    plan = plan_trajectories(config, data.family, data.location, data.dataset, folder / "c", "base")
    base = data.family.load_transformer(data.location, torch.float32, CPU)
    return plan, base, data


def compute(plan, base, batch_size=4):
    calls = []

    def predict(*arguments):
        calls.append(len(arguments[2]))
        return get_family("qwen_image").prediction.predict(base, *arguments, 1.0)

    passes = compute_missing(plan, predict, base, CPU, batch_size, lambda done, total: None)
    return passes, calls


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", some(["generate", "edit"], "edit"))
def test_points_lie_on_the_way_of_an_image_that_the_base_alone_makes(tmp_path, cache, images, task):
    plan, base, data = planned(tmp_path, cache, images[task])
    passes, _ = compute(plan, base)
    assert passes == 4 * 3
    points = plan.batch(range(len(plan)))
    # Every point appears once in a turn, and in another order in the next.
    seen = {(name, sigma) for name, sigma in zip(points.names, points.sigmas, strict=True)}
    assert len(seen) == len(plan) == 12
    assert plan.batch(range(12, 24)).names != points.names
    with torch.no_grad():
        velocity = data.family.prediction.predict(
            base,
            points.noisy,
            torch.tensor(points.sigmas),
            points.conditionings,
            points.controls,
            1.0,
        )
    assert torch.allclose(velocity, points.output, atol=1e-5)
    assert len(points.controls) == (1 if task == "edit" else 0)
    # An independent way to the same image: the sampler of the previews.
    first = plan.trajectories[0]
    text = plan.memory.read(first.item.text)
    controls = [plan.memory.read(entry)["latents"][None] for entry in first.item.controls]
    with torch.no_grad():
        image = sample_euler(
            lambda x, sigma: data.family.prediction.predict(base, x, sigma, [text], controls, 1.0),
            first.noise()[None],
            plan.sigmas,
        )[0]
    ours = first.before(3, plan.memory.read(first.entry)["velocities"], plan.sigmas)
    assert torch.allclose(ours, image, atol=1e-4)
    assert image.std() > 0.1


def test_what_is_cached_is_not_computed_again(tmp_path, cache):
    plan, base, _ = planned(tmp_path, cache)
    assert compute(plan, base, batch_size=3)[1] == [3, 3, 3, 1, 1, 1]
    assert compute(plan, base) == (0, [])
    plan.trajectories[2].entry.path.unlink()
    assert compute(plan, base)[0] == 3
    other, base, _ = planned(tmp_path, cache, steps=4)
    assert compute(other, base)[0] == 16


def test_another_run_removes_nothing_that_is_held_to(tmp_path, cache):
    plan, base, _ = planned(tmp_path, cache)
    compute(plan, base)
    files = [each.entry.path for each in plan.trajectories]
    nothing = np.zeros((0, 32), np.uint8)
    remove_unused(tmp_path / "c", 0, nothing)
    assert all(path.exists() for path in files)
    plan.mark.release()
    remove_unused(tmp_path / "c", 0, nothing)
    assert not any(path.exists() for path in files)


def test_held_out_images_give_prompts_no_control_image(tmp_path, cache, images):
    config = run_config(
        tmp_path,
        cache,
        dataset={
            "path": str(images["edit"]),
            "validation": {"share": 0.5},
            "preservation": HALF["preservation"] | {"count": 24},
        },
    )
    data = prepare(config, SilentObserver(), SingleProcess(CPU)).dataset
    held = {e.key for item in data.items if item.validation for e in item.controls}
    own = {e.key for item in data.items if not item.validation for e in item.controls}
    given = {entry.key for item in data.preserved for entry in item.controls}
    assert held - own
    assert given
    assert given <= own


def test_regularization_images_weigh_what_their_setting_says(tmp_path, cache):
    folder = tmp_path / "one"
    folder.mkdir()
    for ending in ("png", "txt"):
        shutil.copy(dataset_folder("generate") / f"001.{ending}", folder)
    second = tmp_path / "two"
    shutil.copytree(folder, second)

    def first_loss(weight):
        ordinary = {"path": str(second), "weight": weight}
        config = run_config(
            tmp_path / str(weight),
            cache,
            dataset={"path": str(folder), "regularization": ordinary, "caption_dropout": 0.0},
            training={"steps": 1, "batch_size": 2, "gradient_accumulation_steps": 1},
        )
        return train(config).losses[0]

    none, half, whole = (first_loss(weight) for weight in (0.0, 0.5, 1.0))
    assert half == pytest.approx((none + whole) / 2, rel=1e-5)
    assert 0 < none < whole


def test_the_length_follows_from_the_images_seen(tmp_path, cache):
    config = run_config(tmp_path, cache, training={"steps": None, "batch_size": 16}, dataset=HALF)
    assert resolved_length(config, 12).training.steps == 100  # two micro-batches of 16, one half
    assert resolved_length(config, 48).training.steps == 200
    fixed = run_config(tmp_path, cache, training={"steps": 7})
    assert resolved_length(fixed, 12) == fixed
