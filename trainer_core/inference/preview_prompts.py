"""Preview prompts with their control images and frames: checked, encoded once, and kept cached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..config import DatasetSection, PreviewSection
from ..data.cache.cache_file import Entry, is_sound, make_entry, read_entry, write_entry
from ..data.cache.encoder_protocols import Encoders, encode_endpoints, of_clips
from ..data.clips import is_clip, read_frames
from ..data.crop import fit_to_bucket, resize_exact
from ..data.drawn_masks import with_mask
from ..data.image import on_white, open_image, to_pixels
from ..errors import ConfigError
from ..families.family import Family
from ..filesystem.storage import require_folder
from ..types import Bucket, ClipPart, Conditioning
from .sampler import SampleRequest, preview_frames, with_generated_size


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt that needs no encoder any more.

    Attributes:
        controls: Latents of its control images, each `[C, h, w]`.
    """

    text: str
    conditioning: Conditioning
    negative: Conditioning
    controls: tuple[Tensor, ...]
    entry: Entry

    def request(self, seed: int) -> SampleRequest:
        """Ask a `Sampler` for an image of this prompt from the noise of a seed."""
        return SampleRequest(self.conditioning, self.negative, self.controls, seed)


_CONTROLS: dict[str, tuple[int, int | None]] = {
    "generate": (0, 0),
    "edit": (1, 1),
    "layered": (1, 1),
    "fill": (1, 1),
}
"""Least and largest number of control images of a variant; of others one or more."""


def check_controls(preview: PreviewSection, variant: str, family: Family | None = None) -> None:
    """Refuse prompts that the base cannot generate, before anything is encoded.

    Args:
        variant: The base's variant; never ``auto``.
        family: Of the base: control images of one of videos are the frames that a clip begins and
            ends with, or the clip that steers it.

    Raises:
        ConfigError: When a prompt has too few or too many control images.
    """
    least, most = _CONTROLS.get(variant, (1, None))
    if family is not None and family.starts is not None:
        least, most = 0, 2 if family.starts.end else 1
    if family is not None and family.steered:
        least, most = 0, 1 if family.starts is None else 2
    for index, text in enumerate(preview.prompts):
        count = len(preview.controls[index]) if preview.controls else 0
        if count >= least and (most is None or count <= most):
            continue
        wanted = "none" if most == 0 else "one" if most == 1 else "one or more"
        raise ConfigError(
            f"preview.controls: {count} control images for the prompt {text[:60]!r}, and the "
            f"base is trained as {variant}",
            f"{wanted} for each prompt",
            "Leave preview.controls out; in a graph: connect nothing to controls of Preview "
            "Prompts."
            if most == 0
            else "Name an image for each prompt in preview.controls; in a graph: connect it to "
            "controls of Preview Prompts.",
        )


def check_frames(preview: PreviewSection, family: Family, usual: int | None = None) -> None:
    """Refuse previews of one frame on a base that is always given the first: none is left to make.

    Args:
        usual: How many frames a preview has where nothing says it; None where clips will say it.

    Raises:
        ConfigError: When previews have one frame.
    """
    if family.clips is None or family.starts is None or not family.starts.always:
        return
    frames = preview.frames or usual
    if frames is not None and preview_frames(preview, family, frames) == 1:
        raise ConfigError(
            f"preview.frames is {preview.frames or 'not set'}, which makes previews of one frame, "
            f"and {family.title} makes clips that begin with one",
            f"{family.clips.frames_of(2)} frames or more",
            "Raise preview.frames"
            + (", or leave it out: as many as the dataset's clips." if usual is None else "."),
        )


def encode_prompts(
    preview: PreviewSection,
    dataset: DatasetSection,
    family: Family,
    variant: str,
    folder: Path,
    identity: str,
    open_encoders: Callable[[], Encoders],
    size_step: int,
    frames: int = 1,
    start: Callable[[], Image.Image] | None = None,
    control: tuple[Path, ClipPart] | None = None,
) -> tuple[EncodedPrompt, ...]:
    """Encode the preview prompts, or read them from the cache.

    Args:
        identity: Names the encoders and their precision.
        open_encoders: Loads the encoders; called only when a prompt is not cached.
        size_step: Sides of what is generated are multiples of this many pixels.
        frames: How many most clips of the dataset have.
        start: Reads the first frame of the clips of prompts without an image of their own; None
            where these begin without one.
        control: The clip that steers those of prompts without one of their own.

    Returns:
        One for each prompt, in order.

    Raises:
        ConfigError: When a control image is missing, or the image that a clip begins with.
        DatasetError: When it cannot be read.
        StorageError: When the cache cannot be written.
    """
    encoded: list[EncodedPrompt] = []
    for index, line in enumerate(preview.prompts):
        own = with_generated_size(preview.of_prompt(line, index), size_step)
        images = _prompt_images(
            own,
            dataset,
            family,
            variant=variant,
            frames=preview_frames(own, family, frames),
            start=start,
            control=control,
        )
        texts = own.prompts[0], own.negative_prompt
        entry = _entry(folder, *texts, images, identity)
        if not is_sound(entry, thorough=True):
            require_folder(entry.path.parent)
            channels = family.control_channels(variant)
            write_entry(entry, _encode(texts, images, open_encoders(), channels))
        # Read back even when just encoded: the same numbers at the first preview and the next.
        count = 1 if family.steered else len(images.controls)
        encoded.append(read_prompt(line, entry, count))
    return tuple(encoded)


@dataclass(frozen=True, slots=True)
class _PromptImages:
    """What a prompt is generated from besides its texts.

    Attributes:
        frames: Number of frames that are generated.
        controls: The images that are edited.
        steering: The frames of the clip that steers the generated one.
        endpoints: The first and last frame of the generated clip.
    """

    frames: int
    controls: Sequence[Image.Image] = ()
    steering: Sequence[Image.Image] = ()
    endpoints: Sequence[Image.Image] = ()


def _prompt_images(
    preview: PreviewSection,
    dataset: DatasetSection,
    family: Family,
    *,
    variant: str,
    frames: int,
    start: Callable[[], Image.Image] | None,
    control: tuple[Path, ClipPart] | None,
) -> _PromptImages:
    """Read the images of one prompt; arguments are those of `encode_prompts`.

    Args:
        preview: The settings of this prompt alone.
        frames: How many are generated.
    """
    files = [Path(file) for each in preview.controls for file in each]
    if not family.steered and family.starts is None:
        controls = [
            _control(file, preview, dataset, family=family, variant=variant) for file in files
        ]
        return _PromptImages(frames, controls)
    steering: Sequence[Image.Image] = ()
    if family.steered:
        assert family.clips is not None
        clips = [each for each in files if is_clip(each)]
        files = [each for each in files if each not in clips]
        part = ClipPart(0.0, frames, dataset.fps or family.clips.rate)
        clip = (clips[0], part) if clips else control
        steering = _control_frames(preview, family, files, control=clip, count=frames)
    begins = family.starts is not None and frames > 1
    endpoints = _endpoints(preview, family, files, start) if begins else ()
    return _PromptImages(frames, steering=steering, endpoints=endpoints)


def _endpoints(
    preview: PreviewSection,
    family: Family,
    files: Sequence[Path],
    start: Callable[[], Image.Image] | None,
) -> Sequence[Image.Image]:
    """The first and last frame of a preview's clip; none where it is made of a text alone."""
    images = [_read_control(file, "first_frame", 3) for file in files]
    if not images and start is not None:
        images = [start()]
    if not images and family.starts is not None and family.starts.always:
        raise ConfigError(
            f"preview.controls: no image for the prompt {preview.prompts[0][:60]!r}, and "
            f"{family.title} makes clips that begin with one",
            "an image for each prompt",
            "Name it in preview.controls; in a graph: connect it to controls of Preview Prompts.",
        )
    return [_fitted(each, preview) for each in images]


def _control_frames(
    preview: PreviewSection,
    family: Family,
    images: Sequence[Path],
    control: tuple[Path, ClipPart] | None,
    count: int,
) -> Sequence[Image.Image]:
    """The frames of the clip that steers a preview's clip."""
    if control is None or (images and family.starts is None):
        image = f"the image {images[0].name}" if images else "no control clip"
        raise ConfigError(
            f"{image} for the prompt {preview.prompts[0][:60]!r}, and a control clip alone steers "
            f"what {family.title} makes",
            "a control clip for each prompt",
            "Choose a dataset folder with control clips as controls_from of Preview Prompts.",
        )
    path, part = control
    frames = read_frames(path, replace(part, frames=count))
    return [_fitted(each, preview) for each in frames]


def _fitted(image: Image.Image, preview: PreviewSection) -> Image.Image:
    return fit_to_bucket(image, Bucket(preview.width, preview.height))


def _bytes(images: Sequence[Image.Image]) -> list[Tensor]:
    """Each `[3, H, W]`, uint8."""
    return [torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in images]


def _control(
    path: Path, preview: PreviewSection, dataset: DatasetSection, family: Family, variant: str
) -> Image.Image:
    image = _read_control(path, dataset.animated, family.control_channels(variant))
    if dataset.control_area is None:
        sized = _fitted(image, preview)
        # An image without a transparent area gets the same mask each time.
        return with_mask(sized, 0) if variant in family.latents.filled else sized
    return resize_exact(image, *family.latents.control_size(*image.size, dataset.control_area))


def _read_control(path: Path, animated: str, channels: int) -> Image.Image:
    if not path.is_file():
        raise ConfigError(
            f"preview.controls: {path} is not a file",
            "an image for each control of each prompt",
            "Correct the path; paths in a run file are relative to the run file.",
        )
    return open_image(path, animated, channels)


def _entry(folder: Path, text: str, negative: str, images: _PromptImages, identity: str) -> Entry:
    shown = [*images.steering, *images.endpoints]
    hashes = [
        hashlib.sha256(each.tobytes()).hexdigest() + f"{each.size}"
        for each in shown or images.controls
    ]
    length = f" start of {images.frames}" if shown else ""
    return make_entry(folder, "prompts", f"{identity}{length}", text, negative, *hashes)


def _encode(
    texts: tuple[str, str], images: _PromptImages, encoders: Encoders, channels: int
) -> dict[str, Tensor]:
    """The tensors of a cache entry: each side's conditioning, and latents of control images."""
    shown, tensors = [on_white(control) for control in images.controls], {}
    sides = ("positive", "negative")
    for side, text in zip(sides, texts, strict=True):
        tensors |= {f"{side}.{k}": v for k, v in encoders.encode_text(text, shown).items()}
    for index, control in enumerate(images.controls):
        tensors[f"control.{index}"] = encoders.encode_image(to_pixels(control, channels)[None])[0]
    if images.steering:
        frames = torch.stack(_bytes(images.steering))
        tensors["control.0"] = of_clips(encoders).encode_control(frames)
    if images.endpoints:
        first, *last = _bytes(images.endpoints)
        found = encode_endpoints(encoders, first, last[0] if last else None, images.frames)
        tensors |= {f"{side}.{name}": each for side in sides for name, each in found.items()}
    return tensors


def read_prompt(text: str, entry: Entry, control_count: int) -> EncodedPrompt:
    """Read a prompt that is in the cache.

    Raises:
        StorageError: When the file is damaged or gone.
    """
    tensors = read_entry(entry)

    def side(prefix: str) -> dict[str, Tensor]:
        return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}

    controls = tuple(tensors[f"control.{index}"] for index in range(control_count))
    return EncodedPrompt(text, side("positive."), side("negative."), controls=controls, entry=entry)
