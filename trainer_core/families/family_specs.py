"""The parts of a `Family`: its texts, latents, layers, files and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..config import BaseSection, RunConfig
from ..data.cache.encoder_protocols import Encoders
from ..diffusion.discrete_levels import NoiseLevels
from ..diffusion.parameterization import FLOW, Parameterization
from ..diffusion.sigma import ShiftSettings
from ..types import Conditioning, FrameGrid, StartFrames
from ..weights.file_spec import FileSpec, FolderSpec
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
from .published_sizes import PublishedSizes
from .trainable_text import TrainableText

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ..adapter_files.names.key_map import KeyMap
    from ..data.captions.length import CountTokens
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
class TextSpec:
    """What is known of a family's texts.

    Attributes:
        length: Text tokens when ``base.text_length`` is unset: what ComfyUI uses.
        load_token_counter: Loads the tokenizer alone, and counts a caption's tokens with it as
            ``base.text_length`` counts them.
        conditioning_shapes: The configuration of Diffusers' transformer and a number of text tokens
            to the shapes of a sample's conditioning.
        trainable: The text encoder that can be trained beside the denoiser; None for none.
        shown: Variants whose text encoder sees the control images.
    """

    length: int
    load_token_counter: Callable[[BaseLocation], CountTokens]
    conditioning_shapes: Callable[[Mapping[str, Any], int], Mapping[str, tuple[int, ...]]] = (
        text_shapes
    )
    trainable: TrainableText | None = None
    shown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """What is known of a family's images and latents.

    Attributes:
        size_multiple: Image sides are multiples of this many pixels.
        load_vae: Loads the image encoder and decoder alone.
        of_config: The VAE's configuration to the channels of its latents, and the pixels of an
            image's side for each of them.
        decoder_numbers: What decoding needs at most for a pixel, of numbers in the VAE's format.
        patch: Latents along a side of an image token.
        channels: Of the pixels that the VAE reads and gives: 4 with transparency, which the text
            encoder sees laid on white. See `Family.pixel_channels`.
        control_size: (width, height, area) of a control image to the size it is encoded at.
        layered: Variants that take an image apart: a sample is an image and the layers that it is
            made of, all of one size and with transparency, and the image is its own control image.
        filled: Variants that fill the transparent area of one control image, which is the target
            itself where the dataset has none. Its latents have as many channels more as a latent
            has pixels, and are joined to those of the target.
        clips: Lengths of the clips that it trains; None of a family of images.
        starts: What it may be given of a clip; None where it takes no frame.
        of_base: What of this is otherwise for one base; nothing of it is loaded.
    """

    size_multiple: int
    load_vae: LoadVae
    of_config: Callable[[Mapping[str, Any]], tuple[int, int]] = kl_latents
    decoder_numbers: int = DECODER_NUMBERS
    patch: int = 2
    channels: int = 3
    control_size: Callable[[int, int, int], tuple[int, int]] = area_size
    layered: tuple[str, ...] = ()
    filled: frozenset[str] = frozenset()
    clips: FrameGrid | None = None
    starts: StartFrames | None = None
    of_base: Callable[[LatentSpec, BaseSection], LatentSpec] = lambda spec, base: spec


@dataclass(frozen=True, slots=True)
class RoutedBlocks:
    """Repeated blocks that can compute some of their tokens alone.

    The first input of each is the tokens `[B, S, D]`, and the last output is what becomes of them.

    Attributes:
        blocks: Module lists, in the order of their calls.
        axes: A block's other arguments that have an entry for each token, to the axis of these; one
            for each tensor of a tuple, None where it has none.
        start: (length of an axis, tokens of the target, of its reference images) to where the
            target begins.
    """

    blocks: tuple[str, ...]
    axes: Mapping[str, tuple[int | None, ...]]
    start: Callable[[int, int, int], int] = lambda length, target, references: (
        length - target - references
    )


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What is known of the layers of a family's transformer.

    Attributes:
        key_map: Their names in adapter files and in ComfyUI's model.
        repeated_blocks: Module lists whose items run one after another.
        presets: Names of target sets, to regular expressions that match whole module paths.
        shared_inputs: Regular expressions of layers that are called one after the other with the
            same tensor: those that one expression matches with the same groups.
        sizes: Their sizes and how many blocks there are, from the configuration of Diffusers'
            transformer.
        published: Each published base to what its transformer's configuration has that the first
            variant's has not; empty where all have the same.
        convolutional_presets: Those of the presets that mean convolutions too; others mean Linear
            layers alone.
        unused: Gives regular expressions of the layers of this transformer whose output does not
            reach the prediction, so that they get no gradient.
        unexportable: Regular expressions of layers that no file layout can carry, to the reason.
        prepare: What is done to every transformer that was loaded.
        enable_checkpointing: Makes the transformer compute activations again in the backward pass:
            torch's way, or by the function that calls each block, (block, inputs) to outputs.
        routed: How tokens pass by its blocks; None where that is not known.
    """

    key_map: KeyMap
    repeated_blocks: tuple[str, ...]
    presets: Mapping[str, tuple[str, ...]]
    shared_inputs: tuple[str, ...]
    sizes: Callable[[Mapping[str, Any]], PublishedSizes]
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    convolutional_presets: frozenset[str] = frozenset()
    unused: Callable[[nn.Module], tuple[str, ...]] = lambda transformer: ()
    unexportable: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[nn.Module], None] = lambda transformer: None
    enable_checkpointing: Callable[..., None] = enable_checkpointing
    routed: RoutedBlocks | None = None


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """How a family's bases and adapters are told and read.

    Attributes:
        folder: What its Diffusers folders contain.
        single_file: How its single files are read.
        detect: Whether the tensor names of a base or of an adapter file look like this family.
        header_hint: Regular expression of what headers of adapter files call the model
            (`header_hint` of `bases.adapter_family`).
        header_names: A variant to its names in adapter files' headers.
        twin: Another family whose adapters mostly have the same layers, names and sizes: a file
            that could be for both, and does not say which, is taken for that one's.
    """

    folder: FolderSpec
    single_file: FileSpec
    detect: Callable[[Iterable[str]], bool]
    header_hint: str
    header_names: Mapping[str, HeaderNames] = field(default_factory=dict)
    twin: str = ""


@dataclass(frozen=True, slots=True)
class SecondBase:
    """The other one of two models, which samples the noise levels that a base does not know.

    Attributes:
        base: Where it is.
        begins: Whether it is the one for high noise, with which a generation begins.
        border: Sigma from which on the one for high noise samples.
    """

    base: BaseSection
    begins: bool
    border: float


@dataclass(frozen=True, slots=True)
class PredictionSpec:
    """What a family's transformer predicts, at which noise levels.

    Attributes:
        predict: The denoiser in the trainer's convention.
        parameterization: What its raw output stands for, and what that is compared with.
        guide: Combines the velocities with and without the prompt: (conditional, unconditional,
            scale) to `[B, C, h, w]`.
        takes_guidance: Whether this transformer is conditioned on a guidance value.
        levels: The discrete noise levels that it was trained at; None where every sigma is one. Of
            a family with levels a run file's density is that of the time, in [0, 1], at which a
            level is taken.
        shift: (base, steps of a generation) to what moves the noise levels of a generation.
        trained_shift: What moves the noise levels that are trained: a fact of the family, because
            what a base's scheduler says is for generating. Each family says where it is from.
        levels_of: Noise levels that a base knows, from the lowest; another model, which the base
            does not have, samples the others. Their sigmas are trained where a run file says none.
        levels_note: What is said of the noise levels that a run trains, with all of them filled in.
        second_of: The other one of two models, where the base says where it is.
        density: Of the noise levels that are trained where ``training.sigma.density`` is ``auto``.
    """

    predict: Predict
    parameterization: Parameterization = FLOW
    guide: Callable[[Tensor, Tensor, float], Tensor] = guide
    takes_guidance: Callable[[nn.Module], bool] = lambda transformer: False
    levels: NoiseLevels | None = None
    shift: Callable[[BaseLocation, int], ShiftSettings] = lambda location, steps: read_shift(
        location
    )
    trained_shift: Callable[[BaseLocation], ShiftSettings] = lambda location: ShiftSettings()
    levels_of: Callable[[BaseSection], tuple[float, float]] = lambda base: (0.0, 1.0)
    levels_note: Callable[[RunConfig], str] = lambda config: ""
    second_of: Callable[[BaseSection], SecondBase | None] = lambda base: None
    density: str = "shifted"
