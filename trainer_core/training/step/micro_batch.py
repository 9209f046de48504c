"""`MicroBatchLoss`: one micro-batch: mix noise in, predict, measure the loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...counters import counter_seed
from ...device import pin, seed_generators, send
from ...diffusion.losses import FlowLoss
from ...diffusion.parameterization import FLOW, Parameterization
from ...diffusion.streams import join_streams, stream_shapes, stream_weights
from ...diffusion.weighting import SigmaWeight
from ...errors import NonFiniteError
from ...printable import listed
from ...types import Batch, Conditioning, PreservedBatch
from .noise_draws import Draw, independent_draw, stratified_draw
from .processes import Processes

Predict = Callable[[Tensor, Tensor, Sequence[Conditioning], Sequence[Tensor]], Tensor]
"""Noisy latents `[B, C, h, w]`, sigma `[B]`, conditionings, controls -> raw output, as latents.

Of clips with sound both are `[B, 1, N]` (`diffusion.streams`).
"""

_NAMED = 4
"""Samples that a message names."""


@dataclass(frozen=True, slots=True)
class MicroBatchResult:
    """The loss of one micro-batch, and what each of its samples contributes.

    Attributes:
        loss: Sum of the samples' weighted losses, with its graph, float32.
        sigmas: The noise level of each sample.
        names: The samples, for messages.
        positions: The place of each in the step; -1 for preservation. Empty where places are not
            known.
        errors: `[n]`, float32, detached, on the device: each sample's mean squared error.
    """

    loss: Tensor
    sigmas: tuple[float, ...]
    names: tuple[str, ...]
    positions: tuple[int, ...] = ()
    errors: Tensor | None = None


def merge_results(
    parts: Sequence[MicroBatchResult | Points], losses: Sequence[Tensor], errors: Sequence[Tensor]
) -> MicroBatchResult:
    """The result of a whole micro-batch from those of its parts."""
    return MicroBatchResult(
        functools.reduce(torch.add, losses),
        tuple(sigma for each in parts for sigma in each.sigmas),
        tuple(name for each in parts for name in each.names),
        positions=tuple(position for each in parts for position in each.positions),
        errors=torch.cat(list(errors)) if errors else None,
    )


@dataclass(frozen=True, slots=True)
class SampleLoss:
    """The unweighted loss of one sample of a step.

    Attributes:
        position: Its place in the step; the same for each noise that an image is trained with.
        sigma: Its noise level.
        error: Its mean squared error.
    """

    position: int
    sigma: float
    error: float


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of a step, of all processes together.

    Attributes:
        loss: The mean of the samples' weighted losses.
        norm: Of the gradient before it is clipped.
        sigma_sum: Of all noise levels.
        sample_losses: Of the samples of the dataset, by their places.
    """

    loss: float
    norm: float
    sigma_sum: float
    sample_losses: tuple[SampleLoss, ...]


@dataclass(frozen=True, slots=True)
class Points:
    """Samples at their noise levels: noisy latents and the target to predict there, on the CPU.

    Attributes:
        names: The samples.
        noisy: `[B, C, h, w]`.
        sigmas: The noise level of each.
        target: `[B, C, h, w]`, what the raw output is compared with.
        controls: One `[B, C, h, w]` per control image.
        conditionings: One per sample.
        weights: Factor on the loss of each.
        masks: `[B, 1, h, w]`, factor on the error at each place; None for 1.
        idle: Whether they are not part of the step.
        positions: The place of each in the step, -1 for preservation.
        base_targets: How many of the last ones get their target from the base, during the step;
            the target that stands there until then is not used.
        directions: Positive and negative prompt of each of the first ones, from which the base
            computes the target during the step; empty where no slider is trained.
    """

    names: tuple[str, ...]
    noisy: Tensor
    sigmas: tuple[float, ...]
    target: Tensor
    controls: tuple[Tensor, ...]
    conditionings: tuple[Conditioning, ...]
    weights: tuple[float, ...]
    masks: Tensor | None = None
    idle: bool = False
    positions: tuple[int, ...] = ()
    base_targets: int = 0
    directions: tuple[tuple[Conditioning, Conditioning], ...] = ()

    def inputs(
        self, device: torch.device
    ) -> tuple[Tensor, Tensor, Sequence[Conditioning], Sequence[Tensor]]:
        """What `Predict` takes, on a device."""
        texts = [
            {name: send(tensor, device) for name, tensor in each.items()}
            for each in self.conditionings
        ]
        sigma = send(torch.tensor(self.sigmas, dtype=torch.float32), device)
        return send(self.noisy, device), sigma, texts, [send(e, device) for e in self.controls]

    def part(self, start: int, end: int) -> Points:
        """Those from `start` to before `end`."""
        chosen, count = slice(start, end), len(self.sigmas)
        return replace(
            self,
            names=self.names[chosen],
            noisy=self.noisy[chosen],
            sigmas=self.sigmas[chosen],
            target=self.target[chosen],
            controls=tuple(each[chosen] for each in self.controls),
            conditionings=self.conditionings[chosen],
            weights=self.weights[chosen],
            masks=None if self.masks is None else self.masks[chosen],
            positions=self.positions[chosen],
            directions=self.directions[chosen],  # of the first ones
            # The base computes the targets of the last ones.
            base_targets=max(0, end - max(start, count - self.base_targets)),
        )

    def shapes(self) -> list[torch.Size]:
        """Shapes that samples of one pass share."""
        return [each.shape[1:] for each in (self.noisy, *self.controls)]

    def pinned(self, device: torch.device) -> Points:
        """The same in pinned memory, from which a device copies without a wait."""
        return replace(
            self,
            noisy=pin(self.noisy, device),
            target=pin(self.target, device),
            masks=None if self.masks is None else pin(self.masks, device),
            controls=tuple(pin(control, device) for control in self.controls),
            conditionings=tuple(_pinned(each, device) for each in self.conditionings),
            directions=tuple(
                (_pinned(positive, device), _pinned(negative, device))
                for positive, negative in self.directions
            ),
        )


def _pinned(text: Conditioning, device: torch.device) -> Conditioning:
    return {name: pin(tensor, device) for name, tensor in text.items()}


def _preserved_points(batch: PreservedBatch) -> Points:
    weights = (1.0,) * len(batch.sigmas)
    return Points(
        batch.names,
        batch.noisy,
        batch.sigmas,
        target=batch.output,
        controls=batch.controls,
        conditionings=batch.conditionings,
        weights=weights,
        positions=(-1,) * len(weights),
    )


def _with_base_targets(points: Points) -> Points:
    """The same, with targets that the base computes during the step."""
    count = len(points.sigmas)
    return replace(
        points,
        names=tuple(f"base: at {name}" for name in points.names),
        weights=(1.0,) * count,
        positions=(-1,) * count,
        base_targets=count,
    )


def _joined(points: Sequence[Points]) -> Sequence[Points]:
    if len(points) != 2 or points[0].shapes() != points[1].shapes():
        return points
    one, other = points
    return [
        Points(
            one.names + other.names,
            torch.cat([one.noisy, other.noisy]),
            one.sigmas + other.sigmas,
            target=torch.cat([one.target, other.target]),
            controls=tuple(
                torch.cat(same) for same in zip(one.controls, other.controls, strict=True)
            ),
            conditionings=one.conditionings + other.conditionings,
            weights=one.weights + other.weights,
            masks=_joined_masks(one, other),
            positions=one.positions + other.positions,
            base_targets=other.base_targets,
            directions=one.directions,
        )
    ]


def _joined_masks(one: Points, other: Points) -> Tensor | None:
    """Those of both; what has none counts alike everywhere."""
    known = [each.masks for each in (one, other) if each.masks is not None]
    if not known:
        return None
    frames = max(each.ndim for each in known) == 5
    # Those of one of them may be the same for all frames, or for all places of a frame.
    alike = [each[:, :, None] if frames and each.ndim == 4 else each for each in known]
    shape = torch.broadcast_shapes(*(each.shape[1:] for each in alike))
    parts = iter(alike)
    return torch.cat(
        [
            (known[0].new_ones(1) if each.masks is None else next(parts)).expand(
                len(each.sigmas), *shape
            )
            for each in (one, other)
        ]
    )


@dataclass(frozen=True, slots=True)
class MicroBatchLoss:
    """Computes micro-batches. Steps count from 1, the micro-batches of a step from 0.

    Attributes:
        load: Step (from 1) and micro-batch (from 0) to this process's samples of the dataset.
        load_preserved: The same to the samples of prior preservation.
        predict: The family's raw output on the run's base, with the adapter.
        sigma_at: A batch and a quantile in [0, 1] to the noise level.
        part: ``(index, count)``: this process's part of each micro-batch.
        sigma_weight: Weight of the loss by noise level; None: all alike.
        noise_offset: Factor of noise that is the same over a whole channel.
        parameterization: What the raw output stands for.
        passes: Own passes to how many this process makes, so that all processes make as many.
        stratified: Whether the draws of a sample balance those of its other visits.
        read_ahead: Gives what `prepare` makes of a micro-batch; unset: it is made when needed.
        load_twins: As ``load``, samples whose target the base computes during the step, and the
            step whose independent draws they have.
        fill_targets: Replaces the targets of points by those that the base computes; also given
            step, micro-batch and part.
        signs: How many micro-batches in a row train the same samples with the same noise, each
            with another sign of the adapter's strength.
        on_begin: Called with step and micro-batch before their passes with gradients.
    """

    load: Callable[[int, int], Batch | None]
    load_preserved: Callable[[int, int], PreservedBatch | None]
    predict: Predict
    sigma_at: Callable[[Batch, float], float]
    seed: int
    part: tuple[int, int]
    device: torch.device
    loss_function: FlowLoss = field(default_factory=FlowLoss)
    sigma_weight: SigmaWeight | None = None
    noise_offset: float = 0.0
    parameterization: Parameterization = FLOW
    passes: Callable[[int], int] = lambda own: own
    stratified: bool = False
    read_ahead: Callable[[int, int], Sequence[Points]] | None = None
    load_twins: Callable[[int, int], tuple[Batch, int] | None] = lambda step, micro: None
    fill_targets: Callable[[Sequence[Points], int, int, int], Sequence[Points]] = (
        lambda points, step, micro, part: points
    )
    signs: int = 1
    on_begin: Callable[[int, int], None] = lambda step, micro: None

    def __call__(self, step: int, micro: int) -> MicroBatchResult:
        """Compute one micro-batch with gradients."""
        return self.compute(self.points(step, micro), step, micro)

    def points(self, step: int, micro: int) -> Sequence[Points]:
        """What `prepare` makes of a micro-batch, where it is made ahead or now."""
        return (self.read_ahead or self.prepare)(step, micro)

    def compute(
        self, points: Sequence[Points], step: int, micro: int, part: int = 0
    ) -> MicroBatchResult:
        """Compute a micro-batch, or a part of it.

        Args:
            points: What goes through the base, one pass each.
            part: Of the micro-batch, from 0; a later one has a dropout of its own.
        """
        joined = self.fill_targets(points, step, micro, part)
        # Dropout inside adapters draws from torch's global generators.
        parts = [*self.part, part] if part else self.part
        seed_generators(counter_seed(self.seed, "dropout", step, micro, *parts), self.device)
        self.on_begin(step, micro)
        # Agreed on before the first pass, for which other processes may wait already.
        passes = self.passes(len(joined))
        measured = [self.measure(each) for each in joined]
        losses = [weighted for weighted, _ in measured]
        # Passes that only keep up with other processes add nothing.
        losses += [0.0 * self.loss(joined[0]) for _ in range(passes - len(joined))]
        counted = [each for each in joined if not each.idle]
        errors = [plain for each, (_, plain) in zip(joined, measured, strict=True) if not each.idle]
        return merge_results(counted, losses, errors)

    def prepare(self, step: int, micro: int) -> Sequence[Points]:
        """Read a micro-batch and mix its noise in, in memory that the device can copy from.

        Changes nothing and may be called in any thread.
        """
        batch, preserved = self.load(step, micro), self.load_preserved(step, micro)
        points = [] if batch is None else [self._noisy(batch, step)]
        points += [] if preserved is None else [_preserved_points(preserved)]
        twins = self.load_twins(step, micro)
        points += [] if twins is None else [_with_base_targets(self._noisy(*twins))]
        # Points of one shape go through the base in one pass.
        return [each.pinned(self.device) for each in _joined(points)]

    def _noisy(self, batch: Batch, step: int) -> Points:
        draws = self._draws(batch, step)
        sigmas = tuple(self.sigma_at(batch, draw.place) for draw in draws)
        noise = torch.empty(batch.latents.shape)
        for row, draw in zip(noise, draws, strict=True):
            draw.normal_(row)
            if self.noise_offset:
                level = torch.empty(len(row), *[1] * (row.ndim - 1))
                row.add_(draw.normal_(level, "noise offset"), alpha=self.noise_offset)
        if batch.sounds is None:
            return noisy_points(batch, sigmas, noise, self.parameterization)
        of_sound = torch.empty(batch.sounds.shape)
        for row, draw in zip(of_sound, draws, strict=True):
            draw.normal_(row, "noise of sound")
        return noisy_points(
            batch, sigmas, noise, parameterization=self.parameterization, noise_of_sound=of_sound
        )

    def loss(self, points: Points) -> Tensor:
        """The sum of the points' losses, float32, on the device; every noise level counts alike."""
        return self._measure(points, points.weights)[0]

    def measure(self, points: Points) -> tuple[Tensor, Tensor]:
        """Predict, and compare with the targets.

        Returns:
            The weighted sum of the losses with its graph, and `[n]` the mean squared error of each
            point before any weight, detached; both float32, on the device.
        """
        weights, sigma_weight = points.weights, self.sigma_weight
        if sigma_weight is not None:
            both = zip(weights, points.sigmas, strict=True)
            weights = tuple(weight * sigma_weight(sigma) for weight, sigma in both)
        return self._measure(points, weights)

    def _measure(self, points: Points, weights: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        inputs = points.inputs(self.device)
        output, sigma = self.predict(*inputs), inputs[1]
        masks = None if points.masks is None else self._sent(points.masks)
        losses, plain = self.loss_function(output, self._sent(points.target), sigma, masks)
        if set(weights) != {1.0}:
            losses = losses * self._sent(torch.tensor(weights))
        return losses.sum(), plain

    def _sent(self, tensor: Tensor) -> Tensor:
        return send(tensor, self.device)

    def _draws(self, batch: Batch, step: int) -> list[Draw]:
        turns = batch.turns if self.stratified else (None,) * len(batch.positions)
        # Both signs of a sample have one noise.
        return [
            independent_draw(self.seed, step, position // self.signs)
            if turn is None
            else stratified_draw(self.seed, turn.sample, turn.turn // self.signs)
            for turn, position in zip(turns, batch.positions, strict=True)
        ]


def noisy_points(
    batch: Batch,
    sigmas: tuple[float, ...],
    noise: Tensor,
    parameterization: Parameterization = FLOW,
    noise_of_sound: Tensor | None = None,
) -> Points:
    """Mix noise into a batch.

    Args:
        batch: `[B, C, h, w]`.
        sigmas: The noise level of each of its samples.
        noise: Of the latents' shape.
        noise_of_sound: Of the shape of the sounds, where the batch has any.
    """
    levels = torch.tensor(sigmas)
    latents, masks, texts = batch.latents, batch.masks, batch.conditionings
    if batch.sounds is not None and noise_of_sound is not None:
        shapes = stream_shapes(latents, batch.sounds)
        texts = tuple({**each, **shapes} for each in texts)
        factors = batch.sound_weight * parameterization.sound_weight(levels)
        masks = stream_weights(latents, batch.sounds, masks, factors)
        latents = join_streams(latents, batch.sounds)
        noise = join_streams(noise, noise_of_sound)
    return Points(
        names=batch.names,
        noisy=parameterization.noised(latents, noise, levels),
        sigmas=sigmas,
        target=parameterization.target(latents, noise, levels),
        controls=batch.controls,
        conditionings=texts,
        weights=batch.weights or (1.0,) * len(sigmas),
        masks=masks,
        idle=batch.idle,
        positions=batch.positions,
        directions=batch.directions,
    )


def read_numbers(
    processes: Processes,
    parts: Sequence[MicroBatchResult],
    norm: Tensor,
    samples: int,
    times: int = 1,
) -> StepNumbers:
    """Read a step's numbers from the device: its only wait for it.

    Args:
        norm: Of the gradient, the same in every process.
        samples: Of the whole step, each as often as it is trained.
        times: How often each image is trained in the step: noises, times the signs of a slider.
    """
    own_sigmas, own_errors = _by_place(parts)
    is_own = [float(place in own_sigmas) for place in range(samples)]
    sigmas = [own_sigmas.get(place, 0.0) for place in range(samples)]
    sigma_sum = 0.0
    for part in parts:
        sigma_sum += sum(part.sigmas)
    # A sum to which the first process alone adds something is what the first process has.
    once = norm if processes.index == 0 else torch.zeros_like(norm)
    zero = torch.zeros_like(norm)
    scalars = [once, *(own_errors.get(place, zero) for place in range(samples))]
    scalars += [part.loss.detach() for part in parts]
    summed = iter(processes.sum_numbers([sigma_sum, *is_own, *sigmas], scalars))
    sigma_sum = next(summed)
    is_known, sigmas = ([next(summed) for _ in range(samples)] for _ in range(2))
    norm_sum = next(summed)
    errors = [next(summed) for _ in range(samples)]
    sample_losses = tuple(
        SampleLoss(place // times, sigmas[place], errors[place])
        for place in range(samples)
        if is_known[place]
    )
    loss = 0.0
    for part_loss in summed:
        loss += part_loss / samples
    return StepNumbers(loss, norm_sum, sigma_sum, sample_losses)


def _by_place(parts: Sequence[MicroBatchResult]) -> tuple[dict[int, float], dict[int, Tensor]]:
    """Noise levels and errors of one process's samples by their places in the step."""
    sigmas: dict[int, float] = {}
    errors: dict[int, Tensor] = {}
    for part in parts:
        if part.errors is None or not part.positions:
            continue
        for place, sigma, error in zip(
            part.positions, part.sigmas, part.errors.unbind(), strict=True
        ):
            if place >= 0:
                sigmas[place], errors[place] = sigma, error
    return sigmas, errors


def non_finite_error(
    step: int, what: str, parts: Sequence[MicroBatchResult], remedy: str, place: str = ""
) -> NonFiniteError:
    """Say where a run broke.

    Args:
        what: What is not finite, such as "the loss".
        place: Where in the model, in words, where it is known.
    """
    every = [
        f"{name} (sigma {sigma:.4f})"
        for part in parts
        for name, sigma in zip(part.names, part.sigmas, strict=True)
    ]
    # What is to be done stands behind them.
    samples = listed(every, _NAMED)
    found = f"{what} of step {step} is not finite{place}; samples of this step: {samples}"
    return NonFiniteError(found, "finite numbers", remedy)
