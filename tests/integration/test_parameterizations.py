"""Whole runs of a made-up family that predicts noise (eps), and of one that predicts v."""

import math
from dataclasses import replace

import pytest
import torch
from runs import CancelAfter, merge, metrics, noisy_images

from tests.fixtures.made_up_family import predict as lumen
from tests.fixtures.made_up_family import spec
from tests.fixtures.made_up_family.base import make_lumen_base
from trainer_core.diffusion.discrete_levels import NoiseLevels
from trainer_core.diffusion.parameterization import EPS, v_prediction
from trainer_core.families.registry import PACKAGES
from trainer_core.families.run_files import load_config
from trainer_core.inference.sampler import SampleRequest, SampleSettings
from trainer_core.training import SingleProcess, train
from trainer_core.training.objectives.preservation_trajectories import (
    compute_missing,
    plan_trajectories,
)
from trainer_core.training.observer import RunStarted, SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare
from trainer_core.training.step.noise_draws import stratified_draw

CPU = torch.device("cpu")
KS = [0.03 * (14.6 / 0.03) ** (step / 49) for step in range(50)]
KINDS = {"eps": EPS, "v": v_prediction()}
SEED = 7


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_lumen_base(tmp_path_factory.mktemp("lumen") / "base")


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    """The family predicts this, from latents of unit variance, as models of 2020 to 2023 do."""
    monkeypatch.setitem(PACKAGES, "lumen", "tests.fixtures.made_up_family")
    changed = replace(
        spec.FAMILY,
        prediction=replace(
            spec.FAMILY.prediction,
            predict=predict,
            parameterization=KINDS[request.param],
            levels=NoiseLevels.from_k(KS),
        ),
    )
    monkeypatch.setattr(spec, "FAMILY", changed)
    return request.param


def predict(transformer, noisy, sigma, conditionings, controls, guidance):
    sigma = sigma.to(noisy).reshape(-1, 1, 1, 1)
    given = noisy / torch.hypot(1 - sigma, sigma)
    return lumen.predict(transformer, given, sigma.flatten(), conditionings, controls, guidance)


def config(base, folder, images, **changes):
    values = {
        "family": "lumen",
        "base": {"path": str(base), "variant": "generate", "text_length": 16},
        "dataset": {"path": str(images), "resolution": 32},
        "cache": {"dir": str(images.parent / "cache")},
        "adapter": {"kind": "lora", "rank": 2, "alpha": 2.0},
        "training": {
            "steps": 1,
            "batch_size": 1,
            "precision": "fp32",
            "checkpoint_every": 0,
            "schedule": {"warmup_steps": 0},
            "optimizer": {"learning_rate": 1e-3},
            "sigma": {"density": "auto"},
        },
        "memory": {"device": "cpu", "threads": 1, "gradient_checkpointing": False},
        "output": {"dir": str(folder), "name": "run"},
        "seed": SEED,
    }
    return load_config(merge(values, changes))


def denoised(kind, k, output, noisy):
    """Of k-diffusion."""
    if kind == "eps":
        return noisy - k * output
    return noisy / (k**2 + 1) - k / math.sqrt(k**2 + 1) * output


def euler(kind, noise, ks, model):
    """k-diffusion's, in float64; the model is given latents of unit variance and its level."""
    x = noise.double() * math.sqrt(1 + ks[0] ** 2)
    for k, following in zip(ks, [*ks[1:], 0.0], strict=True):
        output = model(x / math.sqrt(1 + k**2), k / (1 + k)).double()
        x = x + (following - k) * (x - denoised(kind, k, output, x)) / k
    return x


def test_a_step_measures_the_error_of_what_is_predicted(kind, base, tmp_path):
    given = config(base, tmp_path / "runs", noisy_images(tmp_path / "images", 1, 32))
    prepared = prepare(given, SilentObserver(), SingleProcess(CPU))
    sample = prepared.dataset.load(0)
    told = CancelAfter(99)
    result = train(given, told)
    # The level of a uniform time, and the noise, are those of the run's seed.
    draw = stratified_draw(given.seed, 0, 0)
    k = KS[int(draw.place * len(KS))]
    noise = draw.normal_(torch.empty(sample.latents.shape))
    image, noise = sample.latents.double(), noise.double()
    alpha, spread = 1 / math.sqrt(k**2 + 1), k / math.sqrt(k**2 + 1)
    target = noise if kind == "eps" else alpha * noise - spread * image
    model = prepared.family.load_transformer(prepared.location, torch.float32, CPU)
    with torch.no_grad():
        output = lumen.predict(
            model,
            (alpha * image + spread * noise)[None].float(),
            torch.tensor([k / (1 + k)]),
            [sample.conditioning],
        )
    expected = (output[0].double() - target).square().mean().item()
    (line,) = (each for each in metrics(result.folder) if "loss" in each)
    assert line["loss"] == pytest.approx(expected, rel=1e-4)
    (summary,) = (each.summary for each in told.events if isinstance(each, RunStarted))
    assert any("Noise levels (uniform over time)" in each for each in summary.plan)


def test_a_preview_is_what_k_diffusion_generates(kind, base, tmp_path):
    given = config(base, tmp_path / "runs", noisy_images(tmp_path / "images", 1, 32))
    prepared = prepare(given, SilentObserver(), SingleProcess(CPU))
    model = prepared.family.load_transformer(prepared.location, torch.float32, CPU)
    texts = [prepared.encoders.open().encode_text(each) for each in ("an image", "")]
    seed, steps, scale = 11, 5, 3.0
    request = SampleRequest(texts[0], texts[1], (), seed)
    sampler = prepared.sampler(model, CPU)
    found, _ = sampler.latents([request], SampleSettings(32, 32, steps, scale))
    noise = torch.randn(found.shape[1:], generator=torch.Generator().manual_seed(seed))[None]

    def guided(latents, share):
        """Guidance on the raw outputs, as k-diffusion's samplers are given it."""
        with torch.no_grad():
            with_text, without = (
                lumen.predict(model, latents.float(), torch.tensor([share]), [text]).double()
                for text in texts
            )
        return without + scale * (with_text - without)

    expected = euler(kind, noise, [KS[49 - 10 * step] for step in range(steps)], guided)
    error = (found.double() - expected).norm() / expected.norm()
    assert error <= 1e-4
    assert found.std() > 0.1


def test_points_that_the_base_is_held_to_lie_on_that_way(kind, base, tmp_path):
    kept = {"preservation": {"share": 0.5, "count": 2, "steps": 3}}
    given = config(base, tmp_path / "runs", noisy_images(tmp_path / "images", 1, 32), dataset=kept)
    prepared = prepare(given, SilentObserver(), SingleProcess(CPU))
    family, location = prepared.family, prepared.location
    model = family.load_transformer(location, torch.float32, CPU)
    plan = plan_trajectories(given, family, location, prepared.dataset, tmp_path / "c", "base")
    ask = lambda *words: family.prediction.predict(model, *words, 1.0)  # noqa: E731
    compute_missing(plan, ask, model, CPU, 2, lambda done, total: None)
    points = plan.batch(range(len(plan)))
    with torch.no_grad():
        sigmas = torch.tensor(points.sigmas)
        again = ask(points.noisy, sigmas, points.conditionings, points.controls)
    assert torch.allclose(again, points.output, atol=1e-5)
    first = plan.trajectories[0]
    text = plan.memory.read(first.item.text)

    def asked(latents, share):
        with torch.no_grad():
            return lumen.predict(model, latents.float(), torch.tensor([share]), [text])

    expected = euler(kind, first.noise()[None], [KS[49], KS[33], KS[16]], asked)[0]
    assert (plan.image(0).double() - expected).norm() / expected.norm() <= 1e-4
    # The same base as a model of something else makes other images.
    other = replace(
        family,
        prediction=replace(
            family.prediction, parameterization=next(e for n, e in KINDS.items() if n != kind)
        ),
    )
    elsewhere = plan_trajectories(given, other, location, prepared.dataset, tmp_path / "c", "base")
    assert elsewhere.trajectories[0].entry.path != first.entry.path
