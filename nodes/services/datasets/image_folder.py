"""Images that nodes made, kept as the dataset folder that the core reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import ConfigError, DatasetError
from ....trainer_core.filesystem.storage import atomic_write, move, storage_error
from ....trainer_core.filesystem.temporary import temporary_beside
from ...host.folders import clear_leftovers

if TYPE_CHECKING:
    import numpy as np

_WHITE = (255, 255, 255, 255)
_OVERSHOOT = 0.3
"""By how much scaling an image may leave 0 to 1 beside its edges; what is beyond is cut off."""


@dataclass(frozen=True, slots=True)
class GivenImages:
    """What a graph gives for a dataset.

    Attributes:
        batches: Batches of images.
        texts: One caption for each image, or one for all.
        controls: Batches of control images, one for each image, or nothing.
        masks: Batches of masks, `[B, H, W]` or `[H, W]`, one for each image or one for all, or
            nothing; white counts.
        transparent: Whether transparency is kept, as the images' own mask.
    """

    batches: Sequence[Any]
    texts: Sequence[str]
    controls: Sequence[Any] = ()
    masks: Sequence[Any] = ()
    transparent: bool = False


def image_dataset(root: Path, images: GivenImages, values: Mapping[str, Any]) -> dict[str, Any]:
    """Write images as a folder below `root`, and give the whole ``dataset`` section that reads it.

    Raises:
        InputError: When numbers or sizes do not agree, or masks and ``mask.source``.
        StorageError: When the folder cannot be written.
    """
    source = values.get("mask", {}).get("source", "auto")
    if bool(images.masks) and source in {"alpha", "none"}:
        raise ConfigError(
            f"masks are connected, and dataset.mask.source is {source}",
            "dataset.mask.source auto or files, where masks are connected",
            "Set dataset.mask.source to auto, or disconnect the masks.",
        )
    if not images.masks and source == "files":
        raise ConfigError(
            "dataset.mask.source is files, and no masks are connected",
            "a mask for every image",
            "Connect masks, or set dataset.mask.source to auto.",
        )
    folder = write_image_folder(root, replace(images, transparent=source == "alpha"))
    layout = "paired" if images.controls else "flat"
    # A caption may be empty on purpose; a folder would call that a mistake.
    return {**values, "path": str(folder), "layout": layout, "missing_caption": "empty"}


def single_images(batches: Iterable[Any], *, transparent: bool = False) -> list[np.ndarray]:
    """Take batches `[B, H, W, C]` or `[H, W, C]`, in [0, 1] or of 8 bits, apart.

    With one channel they are grey, with four transparent, which is laid on white as it is for image
    files, or kept. One uint8 `[H, W, 3]` for each image, or `[H, W, 4]` where it is kept.

    Raises:
        DatasetError: When a batch holds something else.
    """
    found: list[np.ndarray] = []
    for batch in batches:
        if batch.ndim not in {3, 4} or batch.shape[-1] not in {1, 3, 4}:
            raise DatasetError(
                f"images of shape {tuple(batch.shape)}",
                "[images, height, width, channels] with one, three or four channels",
                "Connect an IMAGE output; a mask or a video is turned into images by a node.",
            )
        whole = _eight_bits(batch)
        singles = list(whole if whole.ndim == 4 else whole[None])
        keeps = transparent and whole.shape[-1] == 4
        found.extend(singles if keeps else map(_three_channels, singles))
    return found


def single_masks(batches: Iterable[Any]) -> list[np.ndarray]:
    """Take batches of masks, `[B, H, W]` or `[H, W]` in [0, 1], apart: uint8 `[H, W]` each.

    Raises:
        DatasetError: When a batch holds something else.
    """
    found: list[np.ndarray] = []
    for batch in batches:
        if batch.ndim not in {2, 3}:
            raise DatasetError(
                f"masks of shape {tuple(batch.shape)}",
                "[masks, height, width]",
                "Connect a MASK output; Convert Image to Mask makes masks of images.",
            )
        whole = _eight_bits(batch)
        found.extend(whole if whole.ndim == 3 else whole[None])
    return found


def _eight_bits(batch: Any) -> np.ndarray:
    import numpy as np

    pixels = batch.detach().cpu()
    if not pixels.numel():
        raise DatasetError(
            f"images or masks of shape {tuple(batch.shape)}: there are none",
            "at least one in every batch",
            "Look for the node that made them, or disconnect it.",
        )
    if str(pixels.dtype) == "torch.uint8":
        return pixels.numpy()
    pixels = pixels.float().numpy()
    if not np.isfinite(pixels).all():
        raise DatasetError(
            f"images or masks of shape {tuple(batch.shape)} with numbers that are not finite",
            "numbers from 0 to 1",
            "Look for the node that made them: a VAE in fp16 may give black images of this kind.",
        )
    low, high = float(pixels.min()), float(pixels.max())
    if low < -_OVERSHOOT or high > 1 + _OVERSHOOT:
        raise DatasetError(
            f"images or masks of shape {tuple(batch.shape)} with numbers from {low:g} to {high:g}",
            "numbers from 0 to 1",
            "Look for the node that made them; one that scales images brings them from 0 to 1.",
        )
    return np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)


def _three_channels(image: np.ndarray) -> np.ndarray:
    import numpy as np
    from PIL import Image

    channels = image.shape[-1]
    if channels == 4:
        background = Image.new("RGBA", (image.shape[1], image.shape[0]), _WHITE)
        background.alpha_composite(Image.fromarray(image))
        return np.asarray(background.convert("RGB"))
    return np.repeat(image, 3, axis=-1) if channels == 1 else image


def write_image_folder(root: Path, sockets: GivenImages) -> Path:
    """Write images, captions, control images and masks, unless the same ones are there.

    Gives a folder below `root` that is named by its content: flat, or paired when there are control
    images.

    Raises:
        DatasetError: When the numbers do not agree, or a mask has another shape than its image.
        StorageError: When it cannot be written.
    """
    images = single_images(sockets.batches, transparent=sockets.transparent)
    shown, masks = single_images(sockets.controls), single_masks(sockets.masks)
    captions = one_for_each(sockets.texts, "images", len(images))
    if shown:
        _require_equal("images", len(images), "controls", len(shown))
    masks = masks * len(images) if len(masks) == 1 else masks
    if masks:
        _require_equal("images", len(images), "masks", len(masks))
        _require_shapes(images, masks)
    target = root / _content_name((*images, *shown, *masks), captions)
    if target.is_dir():
        return target
    clear_leftovers(root)
    with temporary_beside(target) as temporary:
        try:
            trained = temporary / "training_images" if shown else temporary
            _write(trained, images, captions)
            if shown:
                _write(temporary / "control_images", shown, None)
            if masks:
                _write(temporary / "masks", masks, None)
            move(temporary, target)
        except OSError as error:
            if not target.is_dir():
                raise storage_error(target, error) from error
    return target


def _require_shapes(images: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> None:
    from ....trainer_core.data.masks import same_shape

    for index, (image, mask) in enumerate(zip(images, masks, strict=True)):
        (high, wide), (tall, broad) = image.shape[:2], mask.shape
        if not same_shape((broad, tall), (wide, high)):
            raise DatasetError(
                f"mask {index} has {broad} x {tall} pixels, and its image {wide} x {high}",
                "masks of their images' size or shape",
                "Connect the masks of these images, from the node that loads or makes them; a "
                "loader gives a small square for an image without one.",
            )


def write_controls(root: Path, controls: Any, prompts: int) -> list[Path]:
    """Keep the control images of preview prompts, as files that are named by their content.

    A batch has one image for each prompt, or one for all. Gives a file for each prompt.

    Raises:
        ConfigError: When the numbers do not agree.
        StorageError: When a file cannot be written.
    """
    from PIL import Image

    clear_leftovers(root)
    files: list[Path] = []
    # A base that fills an area reads the transparency; others lay it on white themselves.
    for pixels in single_images([controls], transparent=True):
        files.append(root / f"{_content_name([pixels])}.png")
        if not files[-1].is_file():
            image = Image.fromarray(pixels)
            atomic_write(files[-1], lambda path, image=image: image.save(path, format="PNG"))
    files = files * prompts if len(files) == 1 else files
    if len(files) != prompts:
        raise ConfigError(
            f"{prompts} prompts and {len(files)} control images",
            "one control image for each prompt, or one for all",
            "Connect a batch of as many images as there are lines of prompts.",
        )
    return files


def _content_name(images: Iterable[np.ndarray], captions: Sequence[str] = ()) -> str:
    content = hashlib.sha256()
    for image in images:
        content.update(f"{image.shape}".encode() + image.tobytes())
    content.update("\0".join(captions).encode())
    return content.hexdigest()[:24]


def _write(folder: Path, images: Sequence[np.ndarray], captions: Sequence[str] | None) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for index, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{index:05d}.png")
        if captions is not None:
            (folder / f"{index:05d}.txt").write_text(captions[index], encoding="utf-8")


def one_for_each(texts: Sequence[str], what: str, number: int) -> list[str]:
    """Captions of so many images or clips: as many, or one for all; else `DatasetError`."""
    captions = list(texts) * number if len(texts) == 1 else list(texts)
    _require_equal(what, number, "texts", len(captions))
    return captions


def _require_equal(what: str, number: int, others: str, count: int) -> None:
    """Refuse lists of different length by `DatasetError`, which names both."""
    if number != count:
        raise DatasetError(
            f"{number} {what} and {count} {others}",
            f"as many {others} as {what}",
            "Connect lists that were made together, such as both outputs of one loader.",
        )
