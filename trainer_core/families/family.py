"""What the trainer knows about one model architecture: values and functions, nothing to subclass.

A family converts whatever its architecture does differently (time scale, sign, packing, guidance)
inside its own ``predict``, so that everybody else sees latents `[B, C, h, w]`, sigma in [0, 1] and
the raw output of its parameterization, mostly the velocity ``eps - x_0``. Of the CLIP and VAE
on a ComfyUI graph it has facts and functions on tensors: the nodes read these, and touch ComfyUI's
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..config import BaseSection, RunConfig
from ..diffusion.sigma import ShiftSettings, flow_sigmas, shift_factor
from ..errors import ConfigError
from ..types import Conditioning, FrameGrid, StartFrames
from ..weights.diffusers_folder import read_json
from ..weights.layer_packing import Packing
from ..weights.library_errors import reading_part
from ..weights.loading import Take, load_file, load_frozen, load_packed
from .base_names import distilled_by_name
from .family_specs import (
    BaseFiles,
    LatentSpec,
    LayerSpec,
    LoadEncoders,
    PredictionSpec,
    SecondBase,
    TextSpec,
)
from .graph_model_denoiser import LentDenoiser
from .graph_spec import GraphSpec
from .trainable_text import CLIP_L, with_tokens

NAME_THE_OTHER = "Or name the other model's file as base.other_expert."
"""Where samples need both of two models."""

_NARROWEST = 0.05
"""Share of the noise levels that are trained at least, of one of two models."""

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor, nn

    from ..weights.base_location import BaseLocation


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Attributes:
        name: The value of ``family`` in a run file.
        title: The name for people.
        variants: What ``base.variant`` may be, besides ``auto``.
        text: Its texts.
        latents: Its images and latents.
        layers: The layers of its transformer.
        files: How its bases and adapters are told and read.
        prediction: What its transformer predicts, at which noise levels.
        load_encoders: Loads text and image encoders.
        distilled: A base that was distilled to few steps to what will happen and what to train on
            instead, in one line; empty for any other base. See `bases.distilled`.
        graph: What CLIP and VAE of a ComfyUI graph are; None where a graph trains its MODEL alone.
        headless: Why ComfyUI has no such model, in a few words; empty where it has.
        embedded: The Diffusers folder of a tiny base of this family that ships with the trainer.
        models: The published bases in words, for docs/verified.md.
        lent: The denoiser, where a host lends one that it has in memory; None where it is loaded
            from files.
    """

    name: str
    title: str
    variants: tuple[str, ...]
    text: TextSpec
    latents: LatentSpec
    layers: LayerSpec
    files: BaseFiles
    prediction: PredictionSpec
    load_encoders: LoadEncoders
    distilled: Callable[[BaseLocation], str] = distilled_by_name
    graph: GraphSpec | None = None
    headless: str = ""
    embedded: Path | None = None
    models: str = ""
    lent: LentDenoiser | None = None

    def of_base(self, base: BaseSection) -> Family:
        """The family as one of its bases is, whose clips have a rate and frames of their own."""
        return replace(self, latents=self.latents.of_base(self.latents, base))

    def load_transformer(
        self,
        location: BaseLocation,
        dtype: torch.dtype,
        device: torch.device | str,
        base_format: str = "dense",
        mapped: bool = False,
        packed_on: torch.device | None = None,
        take: Take | None = None,
    ) -> nn.Module:
        """Load the frozen denoiser.

        Args:
            device: Where it computes.
            base_format: How the Linear layers of its blocks are kept (``memory.base_format``).
            mapped: Whether weights that the files have in this format may be views into them; on
                the CPU those of a Diffusers folder are so in any case.
            packed_on: Where layers are packed, and are left; unset: on the device.
            take: Given the name of each block that has packed layers, and the block, as soon as it
                is complete: it may put what it has elsewhere.

        Returns:
            Diffusers' model in evaluation mode, without gradients.

        Raises:
            BaseModelError: When its files are damaged, or hold another model.
        """
        packing = Packing.of(base_format, self.layers.repeated_blocks, packed_on)
        if location.file is not None:
            transformer = load_file(
                location,
                self.files.single_file,
                dtype,
                device=device,
                packing=packing,
                mapped=mapped,
                take=take,
            )
        elif packing is not None:
            transformer = load_packed(
                location, self.files.single_file, dtype, device=device, packing=packing, take=take
            )
        else:
            kind = self.files.single_file.transformer
            transformer = load_frozen(
                kind, location.folder, location.part, dtype=dtype, device=device
            )
        self.layers.prepare(transformer)
        return transformer

    def joined(self, location: BaseLocation, config: RunConfig) -> BaseLocation:
        """The place of a run's base, which says whether a text encoder is a part of the denoiser.

        Raises:
            ConfigError: When one is to be trained, and the family's bases have none.
        """
        if not config.training.text_encoder.train:
            return location
        if self.text.trainable is None:
            raise ConfigError(
                f"training.text_encoder.train is true, and family is {self.name}",
                f"a base that reads the pooled text of {CLIP_L.title}: {self.title} has no such "
                "text encoder",
                "Leave training.text_encoder.train out, or choose another base.",
            )
        return with_tokens(location, self.text.trainable)

    def pixel_channels(self, variant: str) -> int:
        """Channels of the pixels that the VAE of a variant reads and gives."""
        return 4 if variant in self.latents.layered else self.latents.channels

    def latent_shape(
        self, location: BaseLocation, width: int, height: int, layers: int = 0, frames: int = 1
    ) -> tuple[int, ...]:
        """``(C, h, w)`` of an image of so many pixels; ``(C, f, h, w)`` with layers, and of clips.

        Layers are as many frames of latents and the image one more; a clip of so many frames has
        as many as `clips` says.
        """
        channels, step = self._latents(location)[0], self.latent_step(location)
        high, wide = (side // step for side in (height, width))
        deep = (layers + 1,) if layers else ()
        if frames > 1 and self.clips is not None:
            deep = (self.clips.latent_frames(frames),)
        return channels, *deep, self.latents.patch * high, self.latents.patch * wide

    def latent_step(self, location: BaseLocation) -> int:
        """Pixels that a side of a generated image is a multiple of."""
        return self.latents.patch * self._latents(location)[1]

    def control_shape(
        self, location: BaseLocation, width: int, height: int
    ) -> tuple[int, int, int]:
        """As `latent_shape`, of a control image, whose transparent area a base may fill."""
        channels, *_, high, wide = self.latent_shape(location, width, height)
        if location.variant in self.latents.filled:
            channels += (height // high) * (width // wide)
        return channels, high, wide

    def control_channels(self, variant: str) -> int:
        """Channels of a control image's pixels."""
        return 4 if variant in self.latents.filled else self.pixel_channels(variant)

    @property
    def clips(self) -> FrameGrid | None:
        """Lengths of the clips that it trains; None where it trains images alone."""
        return self.latents.clips if self.lent is None else self.lent.clips

    @property
    def starts(self) -> StartFrames | None:
        """What it may be given of a clip; None where it takes no frame."""
        return self.latents.starts if self.lent is None else self.lent.starts

    @property
    def steered(self) -> bool:
        """Whether a control clip steers what it generates."""
        return self.lent is not None and self.lent.steered

    def _latents(self, location: BaseLocation) -> tuple[int, int]:
        if self.lent is not None:
            return self.lent.channels, self.lent.pixels
        config = read_json(location.encoders / "vae" / "config.json")
        with reading_part(location.encoders / "vae"):
            return self.latents.of_config(config)

    def latent_grid(self, location: BaseLocation, width: int, height: int) -> tuple[int, int, int]:
        """Rows and columns of the latents of an image of so many pixels, and ``latents.patch``."""
        *_, high, wide = self.latent_shape(location, width, height)
        return high, wide, self.latents.patch

    def sampling_sigmas(
        self,
        location: BaseLocation,
        steps: int,
        width: int,
        height: int,
        shift: float | None = None,
    ) -> Tensor:
        """The noise levels that the base's own scheduler would sample an image's steps with.

        Sides are in pixels. A shift counts instead of the scheduler's own; a denoiser that a host
        lends has levels of its own. `[steps + 1]`, float32, from 1 down to 0; of a family with
        levels from its strongest.
        """
        if self.lent is not None:
            return self.lent.sigmas(steps)
        if self.prediction.levels is not None:
            return self.prediction.levels.sampling(steps)
        settings = ShiftSettings(shift=shift) if shift else self.prediction.shift(location, steps)
        return flow_sigmas(steps, settings, self._tokens(location, width, height))

    def training_shift(self, location: BaseLocation, width: int, height: int) -> float:
        """The shift of the noise levels that are trained of an image of that size in pixels.

        Beyond the largest image of a family's line it stays at the line's end. Times are not
        shifted: of a family with levels it is 1.
        """
        if self.prediction.levels is not None:
            return 1.0
        settings = self.prediction.trained_shift(location)
        tokens = self._tokens(location, width, height)
        return shift_factor(settings, min(tokens, settings.max_tokens))

    def with_noise(self, config: RunConfig) -> RunConfig:
        """Fill in of the noise levels that are trained what a run file leaves to the base.

        Raises:
            BaseModelError: When the base does not say which levels it knows.
            ConfigError: When it knows nearly nothing of those that are named.
        """
        base, sigma = config.base, config.training.sigma
        least, most = self.prediction.levels_of(base)
        density = self.usual_density if sigma.density == "auto" else sigma.density
        bounds = sigma.min or least, most if sigma.max == 1.0 else sigma.max
        if (least, most) != (0.0, 1.0) and bounds[1] - bounds[0] < _NARROWEST:
            raise ConfigError(
                f"training.sigma.min is {sigma.min:g} and max is {sigma.max:g}, and base.path: "
                f"{base.path} is one of two models, for noise levels {least:g} to {most:g}",
                "levels of this model",
                "Leave training.sigma.min and training.sigma.max out, or name the other model.",
            )
        update = {"density": density, "min": bounds[0], "max": bounds[1]}
        sigma = sigma.model_copy(update=update)
        training = config.training.model_copy(update={"sigma": sigma})
        return config.model_copy(update={"training": training})

    def second_of(self, base: BaseSection) -> SecondBase | None:
        """The other one of two models, where the base says where it is.

        Raises:
            BaseModelError: When ``base.other_expert`` is none.
            ConfigError: When it is set, and no base of the family is one of two.
        """
        second = self.prediction.second_of(base)
        if second is None and base.other_expert:
            raise ConfigError(
                f"base.other_expert: {base.other_expert}, and {self.title} has no second model",
                "a base that is one of two models as base.path",
                "Leave base.other_expert out.",
            )
        return second

    def require_sampling(self, base: BaseSection, wanted: str, remedy: str) -> None:
        """Refuse to generate what is wanted with a base that does not know all noise levels.

        The `remedy` says what to do without it.

        Raises:
            ConfigError: As it says.
        """
        least, most = self.prediction.levels_of(base)
        if (least, most) != (0.0, 1.0):
            raise ConfigError(
                f"base.path: {base.path} is one of two models, for noise levels {least:g} to "
                f"{most:g}, and {wanted}",
                "both models, which generate together",
                remedy,
            )

    @property
    def usual_density(self) -> str:
        """What ``training.sigma.density: auto`` means: times are all alike, sigmas are not."""
        return self.prediction.density if self.prediction.levels is None else "uniform"

    def _tokens(self, location: BaseLocation, width: int, height: int) -> int:
        """How many tokens the transformer reads of an image, or of each of its layers."""
        *_, high, wide = self.latent_shape(location, width, height)
        return (high // self.latents.patch) * (wide // self.latents.patch)


def guided_velocity(
    family: Family,
    transformer: nn.Module,
    conditionings: Sequence[Conditioning],
    unconditional: Sequence[Conditioning],
    controls: Sequence[Tensor],
    guidance: float,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the velocity function of a preview for `trainer_core.diffusion.flow.sample_euler`.

    A guidance-distilled base is conditioned on the guidance and runs once. Any other base runs a
    second time with ``unconditional`` when the guidance is above 1.

    Args:
        transformer: The denoiser, with or without an adapter.
        unconditional: The encoded negative prompts, one per image; not read when one pass is
            enough.
        controls: One `[B, C, hc, wc]` per control image.
        guidance: The guidance scale, at least 0.

    Returns:
        A function of latents `[B, C, h, w]` or `[B, C, f, h, w]` and sigma `[B]`.
    """

    def predicted(latents: Tensor, sigma: Tensor, texts: Sequence[Conditioning]) -> Tensor:
        output = family.prediction.predict(transformer, latents, sigma, texts, controls, guidance)
        return family.prediction.parameterization.velocity(output, latents, sigma)

    def once(latents: Tensor, sigma: Tensor) -> Tensor:
        return predicted(latents, sigma, conditionings)

    def twice(latents: Tensor, sigma: Tensor) -> Tensor:
        without = predicted(latents, sigma, unconditional)
        return family.prediction.guide(once(latents, sigma), without, guidance)

    return once if needs_one_pass(family, transformer, guidance) else twice


def needs_one_pass(family: Family, transformer: nn.Module, guidance: float) -> bool:
    """Whether a preview does without the negative prompt, so that it need not be encoded."""
    return guidance <= 1.0 or family.prediction.takes_guidance(transformer)
