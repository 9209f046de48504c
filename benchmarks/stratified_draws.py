"""What stratified draws of noise change: the variance of gradients, and what a run reaches.

Two parts, each row written at once; a row that is in the file is not measured again.

``variance``: an adapter is trained for some steps. Then the gradient of one sample is computed for
every image, `LEVELS` noise levels and `NOISES` noises, half of them the other half turned round,
and projected to `PROJECTED` numbers by a count sketch, which keeps squared lengths on average. From
this table any order of draws is simulated: the squared distance of a mean over some visits of each
image to the expectation, stratified against independent.

``runs``: pairs of runs that differ in the draws alone. The loss is that of the trained images at
fixed levels and noises that no run drew, which is what all of them minimize. Shares of right images
are those of `benchmarks.learning`.

Run: ``python -m benchmarks.stratified_draws --output benchmarks/results/stratified_draws.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from trainer_core.adapters import AttachedAdapter
from trainer_core.config import RunConfig
from trainer_core.config.defaults import run_length
from trainer_core.data.image import to_pixels
from trainer_core.diffusion.losses import FlowLoss
from trainer_core.diffusion.sigma import make_quantile
from trainer_core.inference.pipeline import Pipeline, open_pipeline
from trainer_core.inference.sampler import evaluating
from trainer_core.training import train
from trainer_core.training.step.noise_draws import Draw, independent_draw, stratified_draw
from trainer_core.types import Conditioning

from .learning import Way, config_for, shares_of
from .measuring.own_concepts import prepare
from .measuring.record import origin, read_record, write_record

LEVELS, NOISES, PROJECTED = 32, 8, 4096
VISITS = (2, 4, 10, 20, 40)
WINDOWS = 400
VARIANCES = (("heart", "lora", 51), ("arrow", "loha", 52), ("cup", "lokr", 53))
AT = (10, 200)
"""Steps after which gradients are looked at."""

CONCEPTS, SEEDS = ("heart", "arrow", "cup", "table"), (51, 52, 53)
SMALL = {"training.batch_size": 4, "training.optimizer.learning_rate": 0.003, "training.steps": 400}
"""Steps of three own samples and a preserved one, as on a small GPU."""

REGIMES = {"preset": {}, "small steps": SMALL}
_EVERY = 100
_FIXED = 8
"""Levels, and a noise each, at which a run's loss is measured."""


class Images:
    """The trained images of a run, encoded."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        encoders = pipeline.encoders.open()
        files = sorted(folder.rglob("*.png"))
        images = [Image.open(file).convert("RGB") for file in files]
        self.latents = torch.cat(
            [encoders.encode_image(to_pixels(each, 3)[None]) for each in images]
        )
        self.texts: list[Conditioning] = [
            encoders.encode_text(file.with_suffix(".txt").read_text(encoding="utf-8"), ())
            for file in files
        ]
        self.size = images[0].size


def losses(pipeline: Pipeline, images: Images, which: slice, sigma: float, noise: Tensor) -> Tensor:
    """The loss of each of some images at one level."""
    clean = images.latents[which]
    sigmas = torch.full((len(clean),), sigma)
    output = pipeline.sampler.family.prediction.predict(
        pipeline.base.transformer,
        (1 - sigma) * clean + sigma * noise,
        sigmas,
        images.texts[which],
        [],
        1.0,
    )
    return FlowLoss()(output, noise - clean, sigmas, None)[0]


def gradient_table(
    pipeline: Pipeline, images: Images, adapter: AttachedAdapter, levels: list[float]
) -> Tensor:
    """Gradients of single samples, `[images, LEVELS, NOISES, PROJECTED]`; noise 2k + 1 is -2k."""
    parameters = [each.requires_grad_() for each in adapter.parameters()]
    count = sum(each.numel() for each in parameters)
    random = torch.Generator().manual_seed(9)
    places = torch.randint(PROJECTED, (count,), generator=random)
    signs = torch.randint(2, (count,), generator=random).float() * 2 - 1
    one = [torch.randn(images.latents[0].shape, generator=random) for _ in range(NOISES // 2)]
    noises = [signed for noise in one for signed in (noise, -noise)]
    table = torch.empty(len(images.texts), len(levels), NOISES, PROJECTED)
    for image, level, number in itertools.product(*map(range, table.shape[:3])):
        which = slice(image, image + 1)
        loss = losses(pipeline, images, which, levels[level], noises[number][None]).sum()
        found = torch.autograd.grad(loss, parameters)
        flat = torch.cat([each.reshape(-1) for each in found]) * signs
        table[image, level, number] = torch.zeros(PROJECTED).index_add_(0, places, flat)
    return table


def parts(table: Tensor) -> dict[str, float]:
    """Shares of the variance of single gradients: by image, by level at an image, by noise."""
    cells, noises = table.mean(2), table.shape[2]
    noise = (table - cells[:, :, None]).square().sum(-1).mean() * noises / (noises - 1)
    between = (cells - table.mean((0, 1, 2))).square().sum(-1).mean() - noise / noises
    by_image = table.mean((1, 2)) - table.mean((0, 1, 2))
    image = by_image.square().sum(-1).mean() - noise / (table.shape[1] * noises)
    turned = table.unflatten(2, (-1, 2))
    odd = (turned[:, :, :, 0] - turned[:, :, :, 1]).square().sum(-1).mean() / 4
    whole = between + noise
    shares = {"image": image, "level": between - image, "noise": noise, "odd in the noise": odd}
    return {name: round(float(share / whole), 3) for name, share in shares.items()}


def distance(table: Tensor, visits: int, *, stratified: bool) -> float:
    """Mean squared distance of the mean of some visits of each image to the expectation."""
    expectation, images = table.mean((0, 1, 2)), range(table.shape[0])
    found = []
    for window in range(WINDOWS):
        draws = [
            stratified_draw(window, image, turn)
            if stratified
            else independent_draw(window, turn + 1, image)
            for image, turn in itertools.product(images, range(visits))
        ]
        chosen = [
            table[number // visits, int(draw.place * LEVELS), _noise_of(draw)]
            for number, draw in enumerate(draws)
        ]
        found.append(float((torch.stack(chosen).mean(0) - expectation).square().sum()))
    return float(np.mean(found))


def _noise_of(draw: Draw) -> int:
    """Which noise of the table stands for a draw: of one that is turned round, the other one."""
    value = float(draw.normal_(torch.empty(1))) * draw.sign
    number = int((0.5 + 0.5 * torch.special.erf(torch.tensor(value / 2**0.5))) * NOISES)
    return min(number, NOISES - 1) ^ (draw.sign < 0)


def variance_rows(concept: str, kind: str, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each adapter that is looked at."""
    images = folder / f"{concept}-{seed}"
    prepare(concept, seed, images, 1)
    way = Way("variance", kind, {"training.checkpoint_every": 10, "training.keep_every": 10})
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config = config_for(way, concept, seed, images, Path(place))
        run = train(config).folder
        with open_pipeline(config, has_controls=False) as pipeline:
            shown = Images(pipeline, images)
            quantile = _quantile(config, pipeline, shown)
            levels = [quantile((number + 0.5) / LEVELS) for number in range(LEVELS)]
            for step in AT:
                adapter = pipeline.put_on(_adapter(run, step))
                table = gradient_table(pipeline, shown, adapter.train(), levels)
                adapter.detach()
                ratios = {
                    visits: round(
                        distance(table, visits, stratified=True)
                        / distance(table, visits, stratified=False),
                        3,
                    )
                    for visits in VISITS
                }
                name = f"{concept}, {kind}, step {step}"
                yield {"part": "variance", "name": name, "shares": parts(table), "ratio": ratios}


def _quantile(config: RunConfig, pipeline: Pipeline, images: Images) -> Callable[[float], float]:
    sampler, sigma = pipeline.sampler, config.training.sigma
    shift = sigma.shift or sampler.family.training_shift(sampler.location, *images.size)
    return make_quantile(sigma.density, sigma.mean, sigma.std, shift, sigma.min, sigma.max)


def _adapter(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"{step:06d}" / "adapter.safetensors"


def run_row(
    regime: str, concept: str, seed: int, folder: Path, *, stratified: bool
) -> dict[str, Any]:
    """One run: its loss by step, and what it gets right in the end."""
    images = folder / f"{concept}-{seed}"
    asked = prepare(concept, seed, images)
    changed = {
        "training.checkpoint_every": _EVERY,
        "training.keep_every": _EVERY,
        "training.sigma.stratified": stratified,
        **REGIMES[regime],
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config = config_for(Way(regime, "lora", changed), concept, seed, images, Path(place))
        run = train(config)
        with open_pipeline(config, has_controls=False) as pipeline:
            shown = Images(pipeline, images)
            course = {}
            for step in range(_EVERY, run_length(config) + 1, _EVERY):
                adapter = pipeline.put_on(_adapter(run.folder, step))
                course[step] = round(fixed_loss(pipeline, shown), 5)
                adapter.detach()
            shares = shares_of(pipeline, config, run.adapters[0], asked)
    row = {"part": "runs", "name": run_name(regime, concept, seed, stratified=stratified)}
    return row | {"loss": course} | shares


def run_name(regime: str, concept: str, seed: int, *, stratified: bool) -> str:
    """Names a row."""
    draws = "stratified" if stratified else "independent"
    return f"{regime}, {concept}, seed {seed}, {draws}"


def fixed_loss(pipeline: Pipeline, images: Images) -> float:
    """The loss of the trained images at fixed levels and noises."""
    found = []
    with torch.no_grad(), evaluating(pipeline.base.transformer):
        for number in range(_FIXED):
            random = torch.Generator().manual_seed(1000 + number)
            noise = torch.randn(images.latents.shape, generator=random)
            level = (number + 0.5) / _FIXED
            found.append(losses(pipeline, images, slice(None), level, noise).mean().item())
    return float(np.mean(found))


def rows(there: set[str], folder: Path) -> Iterator[dict[str, Any]]:
    """What is not measured yet."""
    for concept, kind, seed in VARIANCES:
        if f"{concept}, {kind}, step {AT[-1]}" not in there:
            yield from variance_rows(concept, kind, seed, folder)
    for regime, seed, concept in itertools.product(reversed(REGIMES), SEEDS, CONCEPTS):
        for stratified in (False, True):
            if run_name(regime, concept, seed, stratified=stratified) not in there:
                yield run_row(regime, concept, seed, folder, stratified=stratified)


def main() -> None:
    """Measure what is missing, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    output: Path | None = arguments.output
    record = read_record(output) if output else {}
    known, sessions = record.get("rows", []), [*record.get("sessions", []), origin()]
    with tempfile.TemporaryDirectory() as folder:
        for row in rows({row["name"] for row in known}, Path(folder)):
            known.append(row | {"session": len(sessions) - 1})
            print(json.dumps(row), flush=True)
            if output:
                content = {"benchmark": "stratified_draws", "sessions": sessions, "rows": known}
                write_record(output, content)


if __name__ == "__main__":
    main()
