"""Sampling images with a base and, where one is attached, its adapter.

Used for previews while a run trains, for the ``sample`` verb, and to measure what was learned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import PreviewSection, RunConfig
from ..diffusion.flow import sample_euler
from ..diffusion.streams import join_streams, part_streams, stream_shapes
from ..families.family import Family, guided_velocity
from ..families.graph_model_denoiser import LentSound, OtherExpert
from ..types import Conditioning, Sound
from ..weights.base_location import BaseLocation


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One image to sample.

    Attributes:
        negative: The encoded negative prompt, read only where guidance needs a second pass.
        controls: Latents of the control images, each `[C, h, w]`.
        seed: Seed of the initial noise, sampled on the CPU as Diffusers' pipelines do it with a CPU
            generator.
    """

    conditioning: Conditioning
    negative: Conditioning
    controls: tuple[Tensor, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """Size and effort of an image or a clip: pixels, sampling steps, guidance scale.

    Only a base that takes images apart has layers, only one of videos more frames than one. A
    shift is taken instead of the scheduler's own.
    """

    width: int
    height: int
    steps: int
    guidance: float
    layers: int = 0
    shift: float | None = None
    frames: int = 1


Velocity = Callable[[Tensor, Tensor], Tensor]
"""Of latents `[B, C, h, w]` or `[B, C, f, h, w]` and sigma `[B]`."""

_LAYERS = 4
"""Of an image that is taken apart where nothing says how many, as in Diffusers' pipeline."""


def preview_layers(
    preview: PreviewSection, family: Family, variant: str, usual: int = _LAYERS
) -> int:
    """How many layers a preview has.

    Args:
        usual: How many the images of the dataset have.

    Returns:
        0 where the base does not take images apart.
    """
    return (preview.layers or usual) if variant in family.latents.layered else 0


def preview_settings(
    preview: PreviewSection,
    family: Family,
    location: BaseLocation,
    layers: int = _LAYERS,
    frames: int = 1,
) -> SampleSettings:
    """What a run file says of its previews.

    Args:
        frames: How many most clips of the dataset have.
    """
    return SampleSettings(
        preview.width,
        preview.height,
        preview.steps,
        guidance=preview.guidance,
        layers=preview_layers(preview, family, location.variant, layers),
        shift=preview.shift,
        frames=preview_frames(preview, family, frames),
    )


def preview_frames(preview: PreviewSection, family: Family, usual: int) -> int:
    """How many frames a preview has: 1 of an image.

    Args:
        usual: How many most clips of the dataset have.
    """
    grid = family.clips
    return 1 if grid is None else grid.frames_of(grid.latent_frames(preview.frames or usual))


def with_generated_size(preview: PreviewSection, step: int) -> PreviewSection:
    """The settings with the size that is generated, whose sides are multiples of a step."""
    wide, high = (side // step * step for side in (preview.width, preview.height))
    return preview.model_copy(update={"width": wide, "height": high})


def size_note(preview: PreviewSection, family: Family, location: BaseLocation) -> str:
    """Which sizes and lengths of previews the base does not generate as they are; else empty."""
    changed: dict[str, None] = {}
    for index, line in enumerate(preview.prompts):
        own = preview.of_prompt(line, index)
        made = with_generated_size(own, family.latent_step(location))
        if (made.width, made.height) != (own.width, own.height):
            changed[f"{own.width} x {own.height} become {made.width} x {made.height}"] = None
        if grid := family.clips if own.frames else None:
            frames = grid.frames_of(grid.latent_frames(own.frames or 1))
            if frames != own.frames:
                changed[f"{own.frames} frames become {frames}"] = None
    if not changed:
        return ""
    return f"preview: {', '.join(changed)}, because {family.title} generates no others."


def preview_rate(config: RunConfig, family: Family) -> float:
    """Frames per second of previews that are clips: that of the trained ones."""
    return 0.0 if family.clips is None else config.dataset.fps or family.clips.rate


def settings_of_prompt(
    preview: PreviewSection,
    place: Sampler,
    index: int,
    *,
    layers: int = _LAYERS,
    frames: int = 1,
) -> tuple[SampleSettings, int]:
    """What a run file says of one of its previews, and the seed of its noise.

    Args:
        preview: The run file's section: a finished cache may have had other flags.

    Raises:
        ConfigError: When a flag cannot be read.
    """
    own = preview.of_prompt(preview.prompts[index], index)
    return preview_settings(
        own, place.family, place.location, layers=layers, frames=frames
    ), own.seed


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples images on one base.

    Attributes:
        transformer: The denoiser, with or without an adapter.
        decode: Latents `[B, C, h, w]` to pixels `[B, 3 or 4, H, W]` in [-1, 1]; of a base of videos
            also `[B, C, f, h, w]` to `[B, T, 3, H, W]`.
        other: Samples at the noise levels that the base does not know; None where it knows all.
    """

    family: Family
    location: BaseLocation
    transformer: torch.nn.Module
    decode: Callable[[Tensor], Tensor]
    device: torch.device
    other: OtherExpert | None = None

    @torch.no_grad()
    def latents(
        self,
        requests: Sequence[SampleRequest],
        settings: SampleSettings,
        stop: Callable[[], bool] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Sample clean latents.

        Args:
            requests: What to sample; all with controls of the same sizes.
            stop: Asked after each sampling step whether to give up.

        Returns:
            `[B, C, h, w]`, with layers and of clips `[B, C, f, h, w]`, and those of the clips'
            sound `[B, c, t, b]`; float32, normalised.

        Raises:
            SamplingStopped: When ``stop`` said so.
        """
        shape = self.family.latent_shape(
            self.location,
            settings.width,
            settings.height,
            layers=settings.layers,
            frames=settings.frames,
        )
        heard = self._sound(settings)
        shapes = [shape] if heard is None else [shape, heard.shape(settings.frames)]
        noises = [_noises(shapes, request.seed) for request in requests]
        noise, *of_sound = (torch.stack(each).to(self.device) for each in zip(*noises, strict=True))
        beside = stream_shapes(noise, *of_sound) if of_sound else {}
        noise = join_streams(noise, *of_sound) if of_sound else noise
        controls = [
            torch.stack(same).to(self.device)
            for same in zip(*(request.controls for request in requests), strict=True)
        ]
        sigmas = self.family.sampling_sigmas(
            self.location,
            settings.steps,
            settings.width,
            height=settings.height,
            shift=settings.shift,
        )
        latents = self.family.prediction.parameterization.start(noise, float(sigmas[0]))
        with contextlib.ExitStack() as at_end:
            at_end.enter_context(evaluating(self.transformer))

            def velocity_of(family: Family, transformer: torch.nn.Module) -> Velocity:
                return guided_velocity(
                    family,
                    transformer,
                    [{**request.conditioning, **beside} for request in requests],
                    unconditional=[{**request.negative, **beside} for request in requests],
                    controls=controls,
                    guidance=settings.guidance,
                )

            velocity = velocity_of(self.family, self.transformer)
            lent = self.family.lent
            other = self.other if lent is None else lent.other
            if other is not None:
                prediction = replace(self.family.prediction, predict=other.predict)
                family = replace(self.family, prediction=prediction)
                velocity = _by_level(
                    velocity,
                    velocity_of(family, other.open(at_end)),
                    other.border(sigmas),
                    begins=other.begins,
                )
            sampled = sample_euler(velocity, latents, sigmas.to(self.device), stop=stop)
            return part_streams(sampled, beside)

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SampleSettings,
        stop: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Sample images or clips, without the sound of those.

        Args:
            requests: What to sample; all with controls of the same sizes.
            stop: Asked after each sampling step whether to give up.

        Returns:
            Pixels `[B, 3 or 4, H, W]` in [-1, 1], float32, on the CPU. An image and its layers lie
            side by side, the image at the left, then from the lowest layer to the topmost. Of clips
            `[B, T, 3, H, W]`.

        Raises:
            SamplingStopped: When ``stop`` said so.
        """
        return self.sample_with_sound(requests, settings, stop)[0]

    @torch.no_grad()
    def sample_with_sound(
        self,
        requests: Sequence[SampleRequest],
        settings: SampleSettings,
        stop: Callable[[], bool] | None = None,
    ) -> tuple[Tensor, list[Sound]]:
        """Sample images or clips; arguments and errors as `sample`.

        Returns:
            Pixels, and the sound of each clip; none of a base whose sound is not trained.
        """
        latents, of_sound = self.latents(requests, settings, stop)
        if settings.frames > 1:
            pixels = self.decode(latents).float().cpu()
            heard = self._sound(settings)
            return pixels, [
                heard.decode(e) for e in of_sound
            ] if heard and of_sound is not None else []
        frames = latents.unbind(2) if latents.ndim == 5 else (latents,)
        return torch.cat([self.decode(each).float().cpu() for each in frames], dim=-1), []

    def _sound(self, settings: SampleSettings) -> LentSound | None:
        found = None if self.family.lent is None else self.family.lent.sound
        return found if found is not None and (found.always or settings.frames > 1) else None


def _by_level(own: Velocity, others: Velocity, border: Tensor, *, begins: bool) -> Velocity:
    """The velocity of two experts.

    Args:
        border: Sigma of the first step that the one for low noise makes.
        begins: Whether ``others`` is the one for high noise.
    """

    def velocity(latents: Tensor, sigma: Tensor) -> Tensor:
        high = bool(sigma[0].cpu() > border)
        return (others if high == begins else own)(latents, sigma)

    return velocity


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Switch a model and all its parts to evaluation, and back to the mode that each had.

    Args:
        module: An adapter trains inside a base that does not, so each part has a mode of its own.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _noises(shapes: Sequence[tuple[int, ...]], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]
