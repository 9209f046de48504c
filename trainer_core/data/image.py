"""Images as they should be seen: upright, sRGB, eight bits, whole.

Whatever a file holds (palette, CMYK, 16 bits, transparency, an EXIF rotation, a colour profile,
several frames) is turned into one plain sRGB image, or refused with a message that names the file.
Transparency is laid on white, or kept for a VAE that reads it. A camera's or phone's numbers in
Adobe RGB or Display P3 read as sRGB look pale; the VAE knows sRGB only.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageChops, ImageCms, ImageFile
from torch import Tensor

from ..errors import DatasetError
from .image_decoders import BROKEN, is_cut_short, opened_image

_WHITE = (255, 255, 255, 255)
_MODE = {3: "RGB", 4: "RGBA"}
"""Channels of an image to Pillow's name of them."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What an image file's header says.

    Attributes:
        animated: Whether it has several frames that are shown one after the other.
        alpha: Whether its pixels say how transparent they are.
    """

    width: int
    height: int
    animated: bool
    alpha: bool = False


def image_info(path: Path, descriptor: int | None = None) -> ImageInfo:
    """Read an image's header; no pixel is decoded.

    Args:
        descriptor: Of the file, at its beginning, where it is open already.

    Raises:
        DatasetError: When the file is not a readable image or is implausibly large.
    """
    with opened_image(path, descriptor) as image:
        width, height = image.size
        if _orientation(image, path) >= 5:
            width, height = height, width
        return ImageInfo(width, height, _is_animated(image), _has_alpha(image))


def image_size(path: Path) -> tuple[int, int]:
    """Read an image's upright width and height in pixels without decoding it.

    Raises:
        DatasetError: As `image_info`.
    """
    spec = image_info(path)
    return spec.width, spec.height


def turned_note(path: Path, beside: tuple[int, int]) -> str:
    """Say that what belongs to an image was made of it as it lies in the file; empty where not.

    Args:
        beside: Width and height of its mask or control image.
    """
    with opened_image(path) as image:
        if image.size != beside or _orientation(image, path) < 5:
            return ""
    return (
        ": EXIF turns the image alone. Save the images as they are seen, and make these again, "
        "also of those that are upside down"
    )


def open_image(path: Path, animated: str = "error", channels: int = 3) -> Image.Image:
    """Decode an image: upright, of mode RGB or RGBA, without metadata.

    With three channels transparent parts are laid on white; 16-bit greys are scaled to eight bits;
    colours of an embedded profile are converted to sRGB, where Pillow was built with LittleCMS.

    Args:
        animated: With ``first_frame`` the first frame of an animated image is taken; with any
            other value such an image is an error.
        channels: 3, or 4 for transparency as well; what has none is opaque.

    Raises:
        DatasetError: When the file is cut short, empty, not an image, implausibly large, or
            animated against the setting.
    """

    def plain(image: Image.Image) -> Image.Image:
        whole = _plain(image)
        return on_white(whole) if channels == 3 else whole.convert(_MODE[channels])

    return _upright(path, animated, plain)


def open_mask(path: Path, animated: str = "error", *, transparency: bool = False) -> Image.Image:
    """Decode an image whose brightness, or whose transparency, says how much a place counts.

    Its numbers are taken as they are: a colour profile changes nothing. What is transparent in a
    mask is black.

    Args:
        transparency: Whether the mask is how opaque the image is; white where it says nothing.

    Returns:
        An upright image of mode L; white counts.

    Raises:
        DatasetError: As `open_image`.
    """

    def plain(image: Image.Image) -> Image.Image:
        grey = _sixteen_to_eight(image) if image.mode.startswith("I") else image
        colors, alpha = _colors_and_alpha(grey)
        if transparency:
            return alpha or Image.new("L", image.size, 255)
        bright = colors.convert("L")
        return bright if alpha is None else ImageChops.multiply(bright, alpha)

    return _upright(path, animated, plain)


def _upright(path: Path, animated: str, plain: Callable[[Image.Image], Image.Image]) -> Image.Image:
    with opened_image(path) as image:
        if _is_animated(image) and animated != "first_frame":
            raise animated_error(path)
        orientation = _orientation(image, path)
        image.load()
        if ImageFile.LOAD_TRUNCATED_IMAGES and is_cut_short(path, image.format):
            # A host program may have told Pillow to fill the missing part with grey.
            raise OSError("the file ends before the image does")
        upright = plain(image)
        if orientation in _UPRIGHT:
            upright = upright.transpose(_UPRIGHT[orientation])
        # An orientation tag left behind would make a later reader turn the image again.
        upright.info = {}
        return upright


def on_white(image: Image.Image) -> Image.Image:
    """Lay the transparent parts of an RGBA image on white; any other image stays as it is."""
    if image.mode != "RGBA":
        return image
    background = Image.new("RGBA", image.size, _WHITE)
    background.alpha_composite(image)
    return background.convert("RGB")


def to_pixels(image: Image.Image, channels: int = 3) -> Tensor:
    """Turn an image into a tensor `[channels, H, W]`, float32, in [-1, 1]; 3 or 4 channels."""
    values = torch.from_numpy(np.array(image.convert(_MODE[channels]), dtype=np.uint8))
    return values.permute(2, 0, 1).contiguous().float() / 255.0 * 2.0 - 1.0


def from_pixels(pixels: Tensor) -> Image.Image:
    """Turn a tensor `[3, H, W]` in [-1, 1] into an RGB image, one `[4, H, W]` into an RGBA image.

    Values outside are clamped.
    """
    values = (pixels.detach().float().cpu() * 0.5 + 0.5).clamp(0, 1) * 255.0
    return Image.fromarray(values.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy())


def animated_error(path: Path) -> DatasetError:
    """Explain that an image has several frames."""
    return DatasetError(
        f"{path} has several frames",
        "an image with one frame",
        "Save the frame you want as an image of its own, or set dataset.animated: first_frame "
        "or skip.",
    )


def _is_animated(image: Image.Image) -> bool:
    # Phones keep previews or a gain map as further frames (MPO, HEIC); that moves nothing.
    return image.format not in {"MPO", "HEIF"} and bool(getattr(image, "is_animated", False))


def _orientation(image: Image.Image, path: Path) -> int:
    """Read the EXIF or XMP orientation, 1 to 8; 1 where there is none or it makes no sense."""
    try:
        if image.format == "PNG" and not _png_metadata_follows(path):
            # Pillow would decode the whole PNG to look for metadata behind the pixels.
            exif = Image.Image.getexif(image)
        else:
            exif = image.getexif()
        value = int(exif.get(ExifTags.Base.Orientation, 1))
    except BROKEN:
        return 1
    return value if 1 <= value <= 8 else 1


def _png_metadata_follows(path: Path) -> bool:
    pixels_seen = False
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            if kind == b"IEND":
                return False
            pixels_seen = pixels_seen or kind == b"IDAT"
            if pixels_seen and kind in {b"eXIf", b"iTXt", b"tEXt", b"zTXt"}:
                return True
            file.seek(length + 4, 1)
    return False


def _plain(image: Image.Image) -> Image.Image:
    """In sRGB; of mode RGBA only where something is transparent."""
    profile = image.info.get("icc_profile")
    if image.mode.startswith("I"):
        image = _sixteen_to_eight(image)
    colors, alpha = _colors_and_alpha(image)
    colors = to_srgb(colors, profile)
    if alpha is not None:
        colors.putalpha(alpha)
    return colors


def _colors_and_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    if not _has_alpha(image):
        return image, None
    # A profile of greys fits no RGB image.
    grey = image.mode in {"1", "L", "LA", "La"}
    image = image.convert("LA" if grey else "RGBA")
    alpha = image.getchannel("A")
    colors = image.convert("L" if grey else "RGB")
    return colors, None if alpha.getextrema() == (255, 255) else alpha


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in {"LA", "La", "PA", "RGBA", "RGBa"} or "transparency" in image.info


def _sixteen_to_eight(image: Image.Image) -> Image.Image:
    # Pillow's own conversion clips everything above 255 to white.
    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    grey = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        alpha = Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8))
        return Image.merge("LA", (grey, alpha))
    return grey


_MODES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
"""Colour space in a profile's header (ICC.1, 7.2.6), to the mode of the numbers it describes."""

_FITTING = {"RGB": {"RGB", "P", "L", "1"}, "L": {"L", "1"}, "CMYK": {"CMYK"}}
"""Such a mode, to those of the images that have these numbers."""

_SAME = 2
"""Steps of 255 within which a profile is sRGB by another name; many write their own sRGB."""

# Bytes that are not a profile, one of a kind that has no colours, or a Pillow built without
# LittleCMS.
_UNUSABLE = (ImageCms.PyCMSError, OSError, ValueError, TypeError, ImportError)


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Turn an image without transparency into sRGB.

    Args:
        image: Of mode RGB, L, 1, P or CMYK.
        profile: The ICC profile that came with it, or None.

    Returns:
        An image of mode RGB. Its numbers are the plain conversion's where there is no profile,
        where the profile is sRGB itself, and where it is damaged or does not fit the image.
    """
    try:
        meant = _converted(image, profile) if profile else None
    except _UNUSABLE:
        meant = None
    return image.convert("RGB") if meant is None else meant


def _converted(image: Image.Image, profile: bytes) -> Image.Image | None:
    mode = _MODES.get(profile[16:20])
    if mode is None or image.mode not in _FITTING[mode]:
        return None
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    if mode != "CMYK" and _is_srgb(transform, mode):
        return None
    return ImageCms.applyTransform(image.convert(mode), transform)


def _is_srgb(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    greys, levels = np.arange(256).repeat(3).reshape(-1, 3), np.arange(0, 256, 51)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    samples = np.concatenate([greys, colours]).astype(np.uint8)[None]
    before = Image.fromarray(samples).convert(mode)
    after = ImageCms.applyTransform(before, transform)
    if after is None:
        return False
    moved = np.asarray(after, np.int16) - np.asarray(before.convert("RGB"), np.int16)
    return int(np.abs(moved).max()) <= _SAME
