"""A contact sheet: the images by bucket, with what is cut off each darkened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from ...errors import InputError
from ...filesystem.storage import atomic_write
from ...printable import grouped, single_line
from ..plain_font import plain_font, plain_letters
from .dataset_report import DatasetReport, ReportedImage
from .thumbnails import chosen_images, thumbnails

MOST_IMAGES = 240
"""Images of all pages together."""

_ACROSS, _DOWN = 6, 4
_CELL, _GAP, _LABEL = 200, 14, 34
_TOP, _ROW = 44, _CELL + _LABEL + _GAP
_PAPER, _INK, _SOFT, _DARK = (251, 250, 248), (30, 35, 40), (94, 103, 112), 0.36
_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def sheet_pages(report: DatasetReport, most: int = MOST_IMAGES) -> list[Image.Image]:
    """Pages of equal size, at least one: RGB, 1298 x 1036 pixels.

    Args:
        most: The most images on all of them; the last page says how many are left out.
    """
    shown = sorted(chosen_images(report, most), key=lambda image: image.bucket)
    small = thumbnails(shown, _CELL)
    left_out = len(report.images) - len(shown)
    each = _ACROSS * _DOWN
    groups = [shown[start : start + each] for start in range(0, len(shown), each)] or [[]]
    pages: list[Image.Image] = []
    for number, group in enumerate(groups, start=1):
        title = f"{single_line(report.title)}: page {number} of {len(groups)}"
        if left_out and number == len(groups):
            title += f"; {grouped(left_out)} images are left out"
        pages.append(_page(title, group, small))
    return pages


def save_sheet(report: DatasetReport, path: Path, most: int = MOST_IMAGES) -> None:
    """Write all pages below each other as one PNG, JPEG or WebP.

    Raises:
        InputError: When the name ends in something else.
        StorageError: When it cannot be written.
    """
    format_name = _FORMATS.get(path.suffix.lower())
    if format_name is None:
        raise InputError(
            f"--sheet {path}", "a name that ends in .png, .jpg or .webp", "Choose another name."
        )
    pages = sheet_pages(report, most)
    rest = min(most, len(report.images)) % (_ACROSS * _DOWN)
    rows = -(-rest // _ACROSS) or _DOWN
    pages[-1] = pages[-1].crop((0, 0, pages[-1].width, _TOP + rows * _ROW))
    whole = Image.new("RGB", (pages[0].width, sum(page.height for page in pages)), _PAPER)
    at = 0
    for page in pages:
        whole.paste(page, (0, at))
        at += page.height
    atomic_write(path, lambda draft: whole.save(draft, format=format_name, quality=88))


def _page(
    title: str,
    images: Sequence[ReportedImage],
    small: Mapping[str, Sequence[Image.Image]],
) -> Image.Image:
    width = _GAP + _ACROSS * (_CELL + _GAP)
    height = _TOP + _DOWN * _ROW
    page = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((_GAP, 14), plain_letters(title), fill=_INK, font=plain_font(15))
    for place, image in enumerate(images):
        left = _GAP + place % _ACROSS * (_CELL + _GAP)
        top = _TOP + place // _ACROSS * _ROW
        found = small.get(image.name, ())
        if not found:
            pen.rectangle((left, top, left + _CELL, top + _CELL), outline=_SOFT)
        # The frames of a clip lie above each other, or side by side where they are upright.
        high = len(found) == 1 or found[0].height > found[0].width
        wide, tall = (_CELL // len(found), _CELL) if high else (_CELL, _CELL // len(found))
        for number, thumbnail in enumerate(found):
            shown = _with_crop(thumbnail, image)
            shown.thumbnail((wide, tall))
            corner = (left + wide * number, top) if high else (left, top + tall * number)
            across, down = (wide - shown.width) // 2, (tall - shown.height) // 2
            page.paste(shown, (corner[0] + across, corner[1] + down))
        for line, text in enumerate(_label(image)):
            color = _INK if line == 0 else _SOFT
            pen.text((left, top + _CELL + 2 + 15 * line), text, fill=color, font=plain_font(12))
    return page


def _with_crop(thumbnail: Image.Image, image: ReportedImage) -> Image.Image:
    at = image.placements[0] if image.placements else None
    if at is None or at.cut <= 0.005:
        return thumbnail
    width, height = thumbnail.size
    box = (
        round(at.crop[0] * width),
        round(at.crop[1] * height),
        max(1, round(at.crop[2] * width)),
        max(1, round(at.crop[3] * height)),
    )
    dark = thumbnail.point(lambda value: value * _DARK)
    dark.paste(thumbnail.crop(box), box[:2])
    ImageDraw.Draw(dark).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), outline="white")
    return dark


def _label(image: ReportedImage) -> Iterator[str]:
    name = plain_letters(single_line(image.name))
    yield name if len(name) <= 30 else f"{name[:12]}...{name[-15:]}"
    at = image.placements[0] if image.placements else None
    if at is not None:
        cut = f", {at.cut:.0%} cut off" if at.cut > 0.005 else ""
        yield f"{at.bucket}{cut}"
