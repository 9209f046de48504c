"""Images that nodes made, kept as the dataset folder that the core reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import ConfigError, DatasetError
from ...trainer_core.filesystem.storage import atomic_write, move, storage_error
from ...trainer_core.filesystem.temporary import temporary_beside
from ..host.folders import clear_leftovers

if TYPE_CHECKING:
    import numpy as np

_WHITE = (255, 255, 255, 255)


def single_images(batches: Iterable[Any]) -> list[np.ndarray]:
    """Take lists of batches apart.

    Args:
        batches: Each `[B, H, W, C]` or `[H, W, C]`, in [0, 1]; with one channel grey, with four
            transparent, which is laid on white as it is for image files.

    Returns:
        One uint8 `[H, W, 3]` for each image.

    Raises:
        DatasetError: When a batch holds something else.
    """
    import numpy as np

    found: list[np.ndarray] = []
    for batch in batches:
        if batch.ndim not in {3, 4} or batch.shape[-1] not in {1, 3, 4}:
            raise DatasetError(
                f"images of shape {tuple(batch.shape)}",
                "[images, height, width, channels] with one, three or four channels",
                "Connect an IMAGE output; a mask or a video is turned into images by a node.",
            )
        pixels = batch.detach().cpu().float().numpy()
        whole = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
        found.extend(map(_three_channels, whole if whole.ndim == 4 else whole[None]))
    return found


def _three_channels(image: np.ndarray) -> np.ndarray:
    import numpy as np
    from PIL import Image

    channels = image.shape[-1]
    if channels == 4:
        background = Image.new("RGBA", (image.shape[1], image.shape[0]), _WHITE)
        background.alpha_composite(Image.fromarray(image))
        return np.asarray(background.convert("RGB"))
    return np.repeat(image, 3, axis=-1) if channels == 1 else image


def write_image_folder(
    root: Path, batches: Sequence[Any], texts: Sequence[str], controls: Sequence[Any]
) -> Path:
    """Write images, captions and control images, unless the same ones are there.

    Args:
        root: Where such folders lie.
        batches: Batches of images.
        texts: One caption for each image, or one for all.
        controls: Batches of control images, one for each image, or nothing.

    Returns:
        A folder named by its content: flat, or paired when there are control images.

    Raises:
        DatasetError: When the numbers do not agree.
        StorageError: When it cannot be written.
    """
    images, shown = single_images(batches), single_images(controls)
    captions = list(texts) * len(images) if len(texts) == 1 else list(texts)
    _require_equal(len(images), len(captions), "texts")
    if shown:
        _require_equal(len(images), len(shown), "controls")
    target = root / _content_name((*images, *shown), captions)
    if target.is_dir():
        return target
    clear_leftovers(root)
    with temporary_beside(target) as temporary:
        try:
            trained = temporary / "training_images" if shown else temporary
            _write(trained, images, captions)
            if shown:
                _write(temporary / "control_images", shown, None)
            move(temporary, target)
        except OSError as error:
            if not target.is_dir():
                raise storage_error(target, error) from error
    return target


def write_controls(root: Path, controls: Any, prompts: int) -> list[Path]:
    """Keep the control images of preview prompts, as files that are named by their content.

    Args:
        root: The folder.
        controls: A batch of images: one for each prompt, or one for all.
        prompts: How many prompts there are.

    Returns:
        A file for each prompt.

    Raises:
        ConfigError: When the numbers do not agree.
        StorageError: When a file cannot be written.
    """
    from PIL import Image

    clear_leftovers(root)
    files: list[Path] = []
    for pixels in single_images([controls]):
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


def _require_equal(images: int, others: int, what: str) -> None:
    if images != others:
        raise DatasetError(
            f"{images} images and {others} {what}",
            f"as many {what} as images",
            "Connect lists that were made together, such as both outputs of one loader.",
        )
