"""The nouns of the data flow, as frozen dataclasses.

Dimension letters: B batch, C latent channels, H and W pixels, h and w latent grid, f frames, L text
tokens, D width. Latents of an image with its layers have frames, `[C, f, h, w]` and
`[B, C, f, h, w]`, the image first; those of all others have none, `[C, h, w]`. Latents are always
in the family's normalised space: what the denoiser sees at sigma 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Conditioning = Mapping[str, "Tensor"]
"""Everything that is not latents, for one sample and without a batch dimension.

Names are the family's own, for example ``text_embeddings`` `[L, D]`.
"""


@dataclass(frozen=True, slots=True)
class ClipPart:
    """Which frames of a clip are trained.

    Attributes:
        start: Of the first one, in seconds from the clip's first frame.
        rate: How many of them are a second.
    """

    start: float
    frames: int
    rate: float

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.frames / self.rate


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """How many frames of a clip its latents have: one for the first, then one for every few.

    Attributes:
        every: Frames for each further frame of the latents.
        rate: Frames per second that the base was trained at.
        cycle: Frames of the latents after which one stands for a single frame again, as the first
            does; a clip then ends with the second frame of a cycle. 0: never.
    """

    every: int
    rate: float
    cycle: int = 0

    def latent_frames(self, frames: int) -> int:
        """Frames of the latents of the longest clip that has no more than so many frames."""
        if not self.cycle:
            return (frames - 1) // self.every + 1
        cycles = (frames - self.every - 1) // (self.frames_of(self.cycle))
        return max(1, cycles * self.cycle + 2)

    def frames_of(self, latent: int) -> int:
        """Frames of a clip whose latents have so many."""
        return sum(map(self.span, range(latent)))

    def span(self, place: int) -> int:
        """Frames of a clip for the frame of its latents at a place, from 0."""
        return 1 if place == 0 or (self.cycle and place % self.cycle == 0) else self.every

    def lengths(self, most: int) -> list[int]:
        """Numbers of frames that a clip may have, up to the most; a single image is none."""
        every = range(2, self.latent_frames(most) + 1)
        lengths = [(each, self.frames_of(each)) for each in every]
        return [frames for latent, frames in lengths if self.latent_frames(frames) == latent]


START, ENDS = "start", "ends"
"""What a base is given of a clip: its first frame, or its first and its last one.

Also the names before the point of what is stored of them beside the clip's latents.
"""

CONTROL = "control"
"""What is made of a clip that steers another one, in the place of the clip's own latents."""

SOUND = "sound"
"""What is made of a clip's sound, in the place of its frames."""


@dataclass(frozen=True, slots=True)
class StartFrames:
    """That a base of videos can be given the first frame of a clip.

    Attributes:
        always: Whether it begins with one in any case.
        end: Whether it can be given the last frame as well.
    """

    always: bool
    end: bool


@dataclass(frozen=True, slots=True)
class Sound:
    """Sound in two channels.

    Attributes:
        waveform: `[2, N]`, float32, in [-1, 1].
        rate: Numbers of a channel for each second.
    """

    waveform: Tensor
    rate: int


ANY_CLIPS = FrameGrid(1, 16.0)
"""Takes clips of every length, where the base is not known yet."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training example as it lies in the dataset folder.

    Attributes:
        name: Path of the target image relative to the dataset folder, with forward slashes.
        caption: Its text, with the trigger word already in front.
        width: Upright width in pixels (after the EXIF rotation).
        height: Upright height in pixels.
        controls: The control images in order; empty for text-to-image.
        regularization: Whether it is an ordinary image of the second folder.
        layers: The layers that it is made of, from the lowest to the topmost; the image is then its
            own control image. Empty for an image that is trained as it is.
        more_captions: Further texts, made by the caption rules (`data.captions.rules`).
        mask: The file that says what of it counts in the loss; ``image`` itself where that is its
            transparency, None where all counts alike.
        validation: Whether it is held out: never trained on.
        folder: Which of `config.dataset_folders` it lies in.
        repeats: How often it appears in an epoch, times the folder's ``num_repeats``.
        weight: Factor on its loss, times the folder's ``weight``.
        focus: Place, as shares of width and height, that a person put in the middle of what is
            kept; None where nobody did.
        alpha: Whether it may be transparent, and what is counts as white.
        clip: Which frames of ``image`` are trained, where that is a clip.
    """

    name: str
    image: Path
    caption: str
    width: int
    height: int
    controls: tuple[Path, ...] = ()
    regularization: bool = False
    layers: tuple[Path, ...] = ()
    more_captions: tuple[str, ...] = ()
    mask: Path | None = None
    validation: bool = False
    folder: int = 0
    repeats: int = 1
    weight: float = 1.0
    focus: tuple[float, float] | None = None
    alpha: bool = False
    clip: ClipPart | None = None

    @property
    def captions(self) -> tuple[str, ...]:
        """All texts that it is trained with; each epoch takes one."""
        return (self.caption, *self.more_captions)


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A size in pixels, and frames of a clip, to which samples are resized, cropped and cut."""

    width: int
    height: int
    frames: int = 1

    def __str__(self) -> str:
        """Such as ``512x768``, and ``512x768x33`` of clips."""
        size = f"{self.width}x{self.height}"
        return size if self.frames == 1 else f"{size}x{self.frames}"


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """A sample, the size it is trained at, and the sizes of its control images.

    A sample that is trained at several sizes is planned once for each. `flipped` says whether it
    is trained mirrored as well.
    """

    sample: Sample
    bucket: Bucket
    control_buckets: tuple[Bucket, ...] = ()
    flipped: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What of a sample is trained in a step.

    Attributes:
        caption: Which of `Sample.captions`; None for the empty text.
        controls: Whether its control images are given.
        flipped: Whether it is mirrored.
        ordinary: Whether its text has the class word in the place of the trigger word.
        endpoints: Which frames of a clip are given, if they are encoded: `START`, `ENDS`, or none.
    """

    caption: int | None = 0
    controls: bool = True
    flipped: bool = False
    ordinary: bool = False
    endpoints: str = START


@dataclass(frozen=True, slots=True)
class CachedSample:
    """One encoded example.

    Attributes:
        name: As in `Sample`.
        latents: `[C, h, w]`, or with its layers `[C, f, h, w]`; float32, normalised.
        controls: Latents of the control images, each `[C, h, w]`; none in a view without them.
        conditioning: The encoded text of the view (and, for edit families, what the text encoder
            saw of the control images), and the frames that it is given.
        regularization: As in `Sample`.
        mask: `[h, w]` in [0, 1], or `[f, h, w]` of frames with masks of their own, 1 where the
            image counts as foreground; None where all does.
        direction: Of a concept slider, its encoded positive and negative prompt; else None.
        clean: `[f]`, 1 for each frame of latents that is given and not predicted; None where all
            are predicted.
        sound: Latents of a clip's sound, `[c, t, b]`; None where it has none, or none is trained.
    """

    name: str
    bucket: Bucket
    latents: Tensor
    controls: tuple[Tensor, ...]
    conditioning: Conditioning
    regularization: bool = False
    mask: Tensor | None = None
    direction: tuple[Conditioning, Conditioning] | None = None
    clean: Tensor | None = None
    sound: Tensor | None = None


class SampleTurn(NamedTuple):
    """A sample as it is trained once more; names stratified draws.

    Attributes:
        sample: Its index in the dataset.
        turn: How often it was trained before in the run, with each of its noises.
    """

    sample: int
    turn: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of samples of one bucket.

    Attributes:
        names: The samples' names, for messages.
        positions: Index of each sample within its optimizer step, counted over all micro-batches
            and processes; names independent draws of sigma and noise.
        latents: `[B, C, h, w]`, or `[B, C, f, h, w]` of images with equally many layers.
        controls: One `[B, C, h, w]` per control image.
        conditionings: One per sample, in order, not collated; caption dropout is already applied.
        weights: Factor on each sample's loss; empty where all are 1.
        masks: `[B, 1, h, w]` or `[B, 1, f, h, w]`, weights of the loss at each place
            (`data.masks.mask_weights`), where an axis of places that are alike may be 1; None
            where all places of all samples count alike.
        idle: Whether it is there only to keep several processes in step, with weights of 0, and
            is not part of the step.
        directions: Of a concept slider, positive and negative prompt of each sample; else empty.
        sounds: `[B, c, t, b]` of clips that are trained with their sound; else None.
        sound_weight: Factor on the loss of the sound.
        turns: What names the stratified draws of each sample; None for one whose draws are
            independent all the same.
    """

    names: tuple[str, ...]
    positions: tuple[int, ...]
    latents: Tensor
    controls: tuple[Tensor, ...]
    conditionings: tuple[Conditioning, ...]
    weights: tuple[float, ...] = ()
    masks: Tensor | None = None
    idle: bool = False
    directions: tuple[tuple[Conditioning, Conditioning], ...] = ()
    sounds: Tensor | None = None
    sound_weight: float = 1.0
    turns: tuple[SampleTurn | None, ...] = ()


@dataclass(frozen=True, slots=True)
class PreservedBatch:
    """Points where the frozen base's own prediction is the target; noise levels are fixed.

    Attributes:
        names: What they are, for messages.
        noisy: `[B, C, h, w]` or `[B, C, f, h, w]`, noisy latents on the way of an image that the
            base made.
        sigmas: The noise level of each.
        output: As ``noisy``, the raw output of the base there.
        controls: One `[B, C, h, w]` per control image.
        conditionings: One per sample.
    """

    names: tuple[str, ...]
    noisy: Tensor
    sigmas: tuple[float, ...]
    output: Tensor
    controls: tuple[Tensor, ...]
    conditionings: tuple[Conditioning, ...]


@dataclass(frozen=True, slots=True)
class LayerState:
    """The factors of one adapted layer.

    Attributes:
        tensors: Factor name (``lora_up``, ``lora_down``, ``hada_w1_a`` ..., ``lokr_w1`` ...) to
            tensor, as the kind's equation names them.
        alpha: The layer's alpha; scale = alpha / rank, and 1 where the kind's equation says so.
        kernel: A convolution's window; empty for a Linear, and where it is not known.
    """

    tensors: Mapping[str, Tensor]
    alpha: float
    rank: int
    kernel: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterState:
    """A whole adapter, independent of any file layout.

    Attributes:
        kind: ``lora``, ``loha`` or ``lokr``.
        layers: Path of the adapted module in the trainer's (Diffusers') naming, to its factors. A
            layer of another trainer's file that ComfyUI fuses, and that no factors of the kind
            express in parts, stands here undivided under ComfyUI's name (`formats.undivided`).
        settings: What is needed to build the same adapter again, as plain JSON values.
        extras: Differences that are not factors, as other trainers write them: ComfyUI's name of
            the layer to ending (``diff``, ``diff_b``, ``set_weight``, ``w_norm``, ``b_norm``) to
            tensor. An adapter that was trained here has none.
    """

    kind: str
    layers: Mapping[str, LayerState]
    settings: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did; one line of ``metrics.jsonl``.

    `validation_loss` is the loss on held-out images behind the step, `trained_loss` that of as many
    trained ones, measured alike; None where they were not measured, as of everything below.
    A step whose loss or gradient was not finite was `skipped`: it changed no weight, and both are
    NaN here and absent from the line.

    Attributes:
        bands: What the samples were off by, before any weight, by their noise levels: the mean of
            each band of equal width, from the lowest noise on; None for a band without a sample.
        levels: How many samples had which noise level: parts of equal width, by their number.
        norms: How large the adapter is beside the base's weights, by block: Frobenius norms.
        times: Seconds of the step's parts: ``data``, ``compute``, ``reduce``, ``update``. On a GPU
            of the step before, because nothing waits for them.
        memory: In MiB: ``ram`` of the process, and ``allocated``, ``reserved`` and ``peak`` of the
            device.
    """

    step: int
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float
    sigma_mean: float
    step_seconds: float
    time: float
    validation_loss: float | None = None
    trained_loss: float | None = None
    bands: tuple[float | None, ...] | None = None
    levels: Mapping[str, int] | None = None
    norms: Mapping[str, float] | None = None
    times: Mapping[str, float] | None = None
    memory: Mapping[str, int] | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run is about to do; shown at its start.

    Attributes:
        samples_per_bucket: ``"64x64"`` to the number of samples that are trained.
        preserved: What keeps the base from forgetting, in words.
        plan: What an epoch is made of (`data.describe_epoch.describe_plan`), a line each.
        adapted: Each kind of layer with an adapter, a line each (`adapters.layer_list`).
    """

    family: str
    base: str
    device: str
    precision: str
    adapter: str
    layers: int
    parameters: int
    samples_per_bucket: Mapping[str, int]
    steps: int
    preserved: str
    folder: Path
    plan: Sequence[str] = ()
    adapted: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The checkpoint with the lowest loss on held-out images.

    Attributes:
        loss: On held-out images.
    """

    step: int
    loss: float
    adapter: Path


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a finished or cancelled run left its files.

    Attributes:
        best: None where nothing was held out, or its checkpoint is gone.
        stopped_early: Why the run ended before its last step by itself; empty if it did not.
        levels: How many samples were trained at which noise levels: parts of equal width, from the
            lowest noise on; empty where they were not counted.
    """

    folder: Path
    status: str
    step: int
    adapters: Sequence[Path]
    pictures: Sequence[Path]
    losses: Sequence[float]
    best: BestCheckpoint | None = None
    stopped_early: str = ""
    levels: Sequence[int] = ()
