"""What the trainer knows about one model architecture: values and functions, nothing to subclass.

A family converts whatever its architecture does differently (time scale, sign, packing, guidance)
inside its own `predict`, so that everybody else sees latents `[B, C, h, w]`, sigma in [0, 1] and
the raw output of `Family.parameterization`, mostly the velocity ``eps - x_0``. Of the CLIP and VAE
on a ComfyUI graph it has facts and functions on tensors: the nodes read these, and touch ComfyUI's
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..data.cache.build import Encoders
from ..diffusion.noise_levels import NoiseLevels
from ..diffusion.parameterization import FLOW, Parameterization
from ..diffusion.sigma import ShiftSettings, flow_sigmas, shift_factor
from ..types import Conditioning
from ..weights.base_format import Packing
from ..weights.diffusers_folder import read_json
from ..weights.file_spec import FileSpec, FolderSpec
from ..weights.loading import Take, load_file, load_frozen, load_packed
from ..weights.reading_part import reading_part
from .diffusers_parts import (
    DECODER_NUMBERS,
    Vae,
    area_size,
    enable_checkpointing,
    guide,
    kl_latents,
    read_shift,
    text_shapes,
)
from .distilled import distilled_by_name
from .given import GivenDenoiser
from .graph_spec import GraphSpec
from .published_sizes import PublishedSizes
from .trainable_text import TrainableText

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor, nn

    from ..adapter_files.names.key_map import KeyMap
    from ..data.captions import CountTokens
    from ..weights.base_location import BaseLocation


class Predict(Protocol):
    """The denoiser of a family in the trainer's convention."""

    def __call__(
        self,
        transformer: nn.Module,
        noisy: Tensor,
        sigma: Tensor,
        conditionings: Sequence[Conditioning],
        controls: Sequence[Tensor],
        guidance: float,
    ) -> Tensor:
        """Predict what the family's parameterization says, mostly the velocity.

        Args:
            transformer: As `Family.load_transformer` gives it; it may carry an adapter or be
                wrapped for several processes.
            noisy: `[B, C, h, w]`, or with layers `[B, C, f, h, w]`, latents at ``sigma`` on the
                straight path, whatever path the model itself knows.
            sigma: `[B]`, in [0, 1].
            conditionings: One per sample; texts of different lengths are padded here.
            controls: One `[B, C, hc, wc]` per control image, without noise.
            guidance: The value that guidance-distilled bases are conditioned on; others do not see
                it.

        Returns:
            The model's raw output, of the shape and dtype of ``noisy``.
        """
        ...


class PartedEncoders(Encoders, Protocol):
    """Encoders of which only that part has to be on a device which is used."""

    @property
    def vae(self) -> Vae:
        """What `encode_image` computes with."""
        ...

    @property
    def text_models(self) -> tuple[Any, ...]:
        """The models that `encode_text` computes with."""
        ...


class LoadEncoders(Protocol):
    """How a family loads its text encoders and the image encoder."""

    def __call__(
        self, location: BaseLocation, dtype: torch.dtype, device: torch.device | str
    ) -> PartedEncoders:
        """Load what turns captions and images into tensors."""
        ...


class LoadVae(Protocol):
    """How a family loads its image encoder and decoder."""

    def __call__(
        self, location: BaseLocation, dtype: torch.dtype, device: torch.device | str
    ) -> Vae:
        """Load them in the normalised space of the denoiser."""
        ...


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """What other programs call a base in the headers of its adapter files.

    Attributes:
        architecture: In `modelspec.architecture`, without what comes behind the slash.
        version: In `ss_base_model_version`.
    """

    architecture: str
    version: str


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Attributes:
        name: The value of ``family`` in a run file.
        title: The name for people.
        variants: What ``base.variant`` may be, besides ``auto``.
        text_length: Text tokens when ``base.text_length`` is unset: what ComfyUI uses.
        size_multiple: Image sides are multiples of this many pixels.
        folder: What its Diffusers folders contain.
        file: How its single files are read.
        repeated_blocks: Module lists whose items run one after another.
        presets: Names of target sets, to regular expressions that match whole module paths.
        convolutional_presets: Those of the presets that mean convolutions too; others mean Linear
            layers alone.
        shared_inputs: Regular expressions of layers that are called one after the other with the
            same tensor: those that one expression matches with the same groups.
        detect: Whether the tensor names of a base or of an adapter file look like this family.
        load_encoders: Loads text and image encoders.
        load_vae: Loads the image encoder and decoder alone.
        load_token_counter: Loads the tokenizer alone, and counts a caption's tokens with it as
            ``base.text_length`` counts them.
        predict: The denoiser in the trainer's convention.
        parameterization: What its raw output stands for, and what that is compared with.
        levels: The discrete noise levels that it was trained at; None where every sigma is one. Of
            a family with levels a run file's density is that of the time, in [0, 1], at which a
            level is taken.
        key_map: The layers' names in adapter files and in ComfyUI's model.
        sizes: The sizes of a base's layers and how many blocks it has, from the configuration of
            Diffusers' transformer.
        published: Each published base to what its transformer's configuration has that the first
            variant's has not; empty where all have the same.
        header_hint: Regular expression of what headers of adapter files call the model
            (`header_hint` of `bases.adapter_family`).
        header_names: A variant to its names in adapter files' headers.
        twin: Another family whose adapters mostly have the same layers, names and sizes: a file
            that could be for both, and does not say which, is taken for that one's.
        unexportable: Regular expressions of layers that no file layout can carry, to the reason.
        unused_layers: Gives regular expressions of the layers of this transformer whose output
            does not reach the prediction, so that they get no gradient.
        enable_checkpointing: Makes the transformer compute activations again in the backward pass:
            torch's way, or by the function that calls each block, (block, inputs) to outputs.
        takes_guidance: Whether this transformer is conditioned on a guidance value.
        prepare: What is done to every transformer that was loaded.
        guide: Combines the velocities with and without the prompt: (conditional, unconditional,
            scale) to `[B, C, h, w]`.
        latents: The VAE's configuration to the channels of its latents, and the pixels of an
            image's side for each of them.
        decoder_numbers: What decoding needs at most for a pixel, of numbers in the VAE's format.
        patch: Latents along a side of an image token.
        layered: Variants that take an image apart: a sample is an image and the layers that it is
            made of, all of one size and with transparency, and the image is its own control image.
        shown: Variants whose text encoder sees the control images.
        filled: Variants that fill the transparent area of one control image, which is the target
            itself where the dataset has none. Its latents have as many channels more as a latent
            has pixels, and are joined to those of the target.
        channels: Of the pixels that the VAE reads and gives: 4 with transparency, which the text
            encoder sees laid on white. See `pixel_channels`.
        shift: (base, steps of a generation) to what moves the noise levels of a generation.
        trained_shift: What moves the noise levels that are trained: a fact of the family, because
            what a base's scheduler says is for generating. Each family says where it is from.
        distilled: A base that was distilled to few steps to what will happen and what to train on
            instead, in one line; empty for any other base. See `bases.distilled`.
        conditioning_shapes: The configuration of Diffusers' transformer and a number of text tokens
            to the shapes of a sample's conditioning.
        control_size: (width, height, area) of a control image to the size it is encoded at.
        trainable_text: The text encoder that can be trained beside the denoiser; None for none.
        graph: What CLIP and VAE of a ComfyUI graph are; None where the graph cannot encode.
        headless: Why no node trains it, in a few words; empty where nodes do.
        embedded: The Diffusers folder of a tiny base of this family that ships with the trainer.
        models: The published bases in words, for docs/verified.md.
        given: The denoiser, where a host lends one that it has in memory; None where it is loaded
            from files.
    """

    name: str
    title: str
    variants: tuple[str, ...]
    text_length: int
    size_multiple: int
    folder: FolderSpec
    file: FileSpec
    repeated_blocks: tuple[str, ...]
    presets: Mapping[str, tuple[str, ...]]
    shared_inputs: tuple[str, ...]
    detect: Callable[[Iterable[str]], bool]
    load_encoders: LoadEncoders
    load_vae: LoadVae
    load_token_counter: Callable[[BaseLocation], CountTokens]
    predict: Predict
    key_map: KeyMap
    sizes: Callable[[Mapping[str, Any]], PublishedSizes]
    header_hint: str
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    header_names: Mapping[str, HeaderNames] = field(default_factory=dict)
    convolutional_presets: frozenset[str] = frozenset()
    twin: str = ""
    unexportable: Mapping[str, str] = field(default_factory=dict)
    unused_layers: Callable[[nn.Module], tuple[str, ...]] = lambda transformer: ()
    enable_checkpointing: Callable[..., None] = enable_checkpointing
    takes_guidance: Callable[[nn.Module], bool] = lambda transformer: False
    prepare: Callable[[nn.Module], None] = lambda transformer: None
    guide: Callable[[Tensor, Tensor, float], Tensor] = guide
    latents: Callable[[Mapping[str, Any]], tuple[int, int]] = kl_latents
    decoder_numbers: int = DECODER_NUMBERS
    patch: int = 2
    layered: tuple[str, ...] = ()
    shown: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    channels: int = 3
    shift: Callable[[BaseLocation, int], ShiftSettings] = lambda location, steps: read_shift(
        location
    )
    trained_shift: Callable[[BaseLocation], ShiftSettings] = lambda location: ShiftSettings()
    training_density: str = "shifted"
    parameterization: Parameterization = FLOW
    levels: NoiseLevels | None = None
    distilled: Callable[[BaseLocation], str] = distilled_by_name
    conditioning_shapes: Callable[[Mapping[str, Any], int], Mapping[str, tuple[int, ...]]] = (
        text_shapes
    )
    control_size: Callable[[int, int, int], tuple[int, int]] = area_size
    trainable_text: TrainableText | None = None
    graph: GraphSpec | None = None
    headless: str = ""
    embedded: Path | None = None
    models: str = ""
    given: GivenDenoiser | None = None

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
            location: The base.
            dtype: Of its weights.
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
        packing = Packing.of(base_format, self.repeated_blocks, packed_on)
        if location.file is not None:
            transformer = load_file(location, self.file, dtype, device, packing, mapped, take)
        elif packing is not None:
            transformer = load_packed(location, self.file, dtype, device, packing, take)
        else:
            kind = self.file.transformer
            transformer = load_frozen(kind, location.folder, "transformer", dtype, device)
        self.prepare(transformer)
        return transformer

    def load_decoder(
        self, location: BaseLocation, dtype: torch.dtype, device: torch.device | str
    ) -> Callable[[Tensor], Tensor]:
        """Load what turns latents `[B, C, h, w]` into pixels `[B, 3 or 4, H, W]` in [-1, 1]."""
        return self.load_vae(location, dtype, device).decode

    def pixel_channels(self, variant: str) -> int:
        """Channels of the pixels that the VAE of a variant reads and gives."""
        return 4 if variant in self.layered else self.channels

    def latent_shape(
        self, location: BaseLocation, width: int, height: int, layers: int = 0
    ) -> tuple[int, ...]:
        """``(C, h, w)`` of an image of so many pixels; with layers ``(C, layers + 1, h, w)``."""
        channels, pixels = self._latents(location)
        high, wide = (side // (self.patch * pixels) for side in (height, width))
        frames = (layers + 1,) if layers else ()
        return channels, *frames, self.patch * high, self.patch * wide

    def _latents(self, location: BaseLocation) -> tuple[int, int]:
        if self.given is not None:
            return self.given.channels, self.given.pixels
        config = read_json(location.encoders / "vae" / "config.json")
        with reading_part(location.encoders / "vae"):
            return self.latents(config)

    def latent_grid(self, location: BaseLocation, width: int, height: int) -> tuple[int, int, int]:
        """Rows and columns of the latents of an image of so many pixels, and `patch`."""
        *_, high, wide = self.latent_shape(location, width, height)
        return high, wide, self.patch

    def sampling_sigmas(
        self,
        location: BaseLocation,
        steps: int,
        width: int,
        height: int,
        shift: float | None = None,
    ) -> Tensor:
        """The noise levels that the base's own scheduler would sample with.

        Args:
            location: The base.
            steps: Number of steps, at least 1.
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            shift: Instead of the scheduler's own; one that a host lends has levels of its own.

        Returns:
            `[steps + 1]`, float32, from 1 down to 0; of a family with levels from its strongest.
        """
        if self.given is not None:
            return self.given.sigmas(steps)
        if self.levels is not None:
            return self.levels.sampling(steps)
        settings = ShiftSettings(shift=shift) if shift else self.shift(location, steps)
        return flow_sigmas(steps, settings, self._tokens(location, width, height))

    def training_shift(self, location: BaseLocation, width: int, height: int) -> float:
        """The shift of the noise levels that are trained of an image of that size in pixels.

        Beyond the largest image of a family's line it stays at the line's end. Times are not
        shifted: of a family with levels it is 1.
        """
        if self.levels is not None:
            return 1.0
        settings = self.trained_shift(location)
        tokens = self._tokens(location, width, height)
        return shift_factor(settings, min(tokens, settings.max_tokens))

    @property
    def usual_density(self) -> str:
        """What ``training.sigma.density: auto`` means: times are all alike, sigmas are not."""
        return self.training_density if self.levels is None else "uniform"

    def _tokens(self, location: BaseLocation, width: int, height: int) -> int:
        """How many tokens the transformer reads of an image, or of each of its layers."""
        *_, high, wide = self.latent_shape(location, width, height)
        return (high // self.patch) * (wide // self.patch)


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
        family: The base's family.
        transformer: The denoiser, with or without an adapter.
        conditionings: One per image.
        unconditional: The encoded negative prompts, one per image; not read when one pass is
            enough.
        controls: One `[B, C, hc, wc]` per control image.
        guidance: The guidance scale, at least 0.

    Returns:
        A function of latents `[B, C, h, w]` or `[B, C, f, h, w]` and sigma `[B]`.
    """

    def predicted(latents: Tensor, sigma: Tensor, texts: Sequence[Conditioning]) -> Tensor:
        output = family.predict(transformer, latents, sigma, texts, controls, guidance)
        return family.parameterization.velocity(output, latents, sigma)

    def once(latents: Tensor, sigma: Tensor) -> Tensor:
        return predicted(latents, sigma, conditionings)

    def twice(latents: Tensor, sigma: Tensor) -> Tensor:
        without = predicted(latents, sigma, unconditional)
        return family.guide(once(latents, sigma), without, guidance)

    return once if needs_one_pass(family, transformer, guidance) else twice


def needs_one_pass(family: Family, transformer: nn.Module, guidance: float) -> bool:
    """Whether a preview does without the negative prompt, so that it need not be encoded."""
    return guidance <= 1.0 or family.takes_guidance(transformer)
