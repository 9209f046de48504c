"""Pictures that nodes made, kept as the dataset folder that the core reads."""

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


def single_pictures(batches: Iterable[Any]) -> list[np.ndarray]:
    """Take lists of batches apart.

    Args:
        batches: Each `[B, H, W, C]` or `[H, W, C]`, in [0, 1]; with one channel grey, with four
            transparent, which is laid on white as it is for picture files.

    Returns:
        One uint8 `[H, W, 3]` for each picture.

    Raises:
        DatasetError: When a batch holds something else.
    """
    import numpy as np

    found: list[np.ndarray] = []
    for batch in batches:
        if batch.ndim not in {3, 4} or batch.shape[-1] not in {1, 3, 4}:
            raise DatasetError(
                f"pictures of shape {tuple(batch.shape)}",
                "[pictures, height, width, channels] with one, three or four channels",
                "Connect an IMAGE output; a mask or a video is turned into pictures by a node.",
            )
        pixels = batch.detach().cpu().float().numpy()
        whole = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
        found.extend(map(_three_channels, whole if whole.ndim == 4 else whole[None]))
    return found


def _three_channels(picture: np.ndarray) -> np.ndarray:
    import numpy as np
    from PIL import Image

    channels = picture.shape[-1]
    if channels == 4:
        background = Image.new("RGBA", (picture.shape[1], picture.shape[0]), _WHITE)
        background.alpha_composite(Image.fromarray(picture))
        return np.asarray(background.convert("RGB"))
    return np.repeat(picture, 3, axis=-1) if channels == 1 else picture


def write_picture_folder(
    root: Path, images: Sequence[Any], texts: Sequence[str], controls: Sequence[Any]
) -> Path:
    """Write pictures, captions and control pictures, unless the same ones are there.

    Args:
        root: Where such folders lie.
        images: Batches of pictures.
        texts: One caption for each picture, or one for all.
        controls: Batches of control pictures, one for each picture, or nothing.

    Returns:
        A folder named by its content: flat, or paired when there are control pictures.

    Raises:
        DatasetError: When the numbers do not agree.
        StorageError: When it cannot be written.
    """
    pictures, shown = single_pictures(images), single_pictures(controls)
    captions = list(texts) * len(pictures) if len(texts) == 1 else list(texts)
    _require_equal(len(pictures), len(captions), "texts")
    if shown:
        _require_equal(len(pictures), len(shown), "controls")
    target = root / _content_name((*pictures, *shown), captions)
    if target.is_dir():
        return target
    clear_leftovers(root)
    with temporary_beside(target) as temporary:
        try:
            trained = temporary / "training_images" if shown else temporary
            _write(trained, pictures, captions)
            if shown:
                _write(temporary / "control_images", shown, None)
            move(temporary, target)
        except OSError as error:
            if not target.is_dir():
                raise storage_error(target, error) from error
    return target


def write_controls(root: Path, controls: Any, prompts: int) -> list[Path]:
    """Keep the control pictures of preview prompts, as files that are named by their content.

    Args:
        root: The folder.
        controls: A batch of pictures: one for each prompt, or one for all.
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
    for picture in single_pictures([controls]):
        files.append(root / f"{_content_name([picture])}.png")
        if not files[-1].is_file():
            image = Image.fromarray(picture)
            atomic_write(files[-1], lambda path, image=image: image.save(path, format="PNG"))
    files = files * prompts if len(files) == 1 else files
    if len(files) != prompts:
        raise ConfigError(
            f"{prompts} prompts and {len(files)} control pictures",
            "one control picture for each prompt, or one for all",
            "Connect a batch of as many pictures as there are lines of prompts.",
        )
    return files


def _content_name(pictures: Iterable[np.ndarray], captions: Sequence[str] = ()) -> str:
    content = hashlib.sha256()
    for picture in pictures:
        content.update(f"{picture.shape}".encode() + picture.tobytes())
    content.update("\0".join(captions).encode())
    return content.hexdigest()[:24]


def _write(folder: Path, pictures: Sequence[np.ndarray], captions: Sequence[str] | None) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for index, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{index:05d}.png")
        if captions is not None:
            (folder / f"{index:05d}.txt").write_text(captions[index], encoding="utf-8")


def _require_equal(pictures: int, others: int, what: str) -> None:
    if pictures != others:
        raise DatasetError(
            f"{pictures} pictures and {others} {what}",
            f"as many {what} as pictures",
            "Connect lists that were made together, such as both outputs of one loader.",
        )
