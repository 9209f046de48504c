"""The report of a dataset as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple

from PIL import Image

from ...printable import gibibytes, grouped
from ...types import Bucket
from .dataset_report import DatasetReport, Finding, Placement, ReportedImage
from .html_document import document, html_text, tiles
from .report_text import COUNTED, looked_sentence, steps_an_epoch, verdict
from .thumbnails import chosen_images, embedded, masked_thumbnail, thumbnails

MOST_IMAGES = 400
"""Images of a page: about five megabytes."""

SIDE = 224
_NAMED = 24
_BUCKETS = 40
_BESIDE = 3
_BESIDE_SIDE = 108


def _by(*sides: int) -> str:
    return " &times; ".join(map(str, sides))


def _size(bucket: Bucket) -> str:
    return _by(*astuple(bucket)) if bucket.frames > 1 else _by(bucket.width, bucket.height)


def report_page(report: DatasetReport, most: int = MOST_IMAGES) -> str:
    """The page: a whole HTML document.

    Args:
        most: The most images on it; it says how many it leaves out.
    """
    shown = chosen_images(report, most)
    anchors = {image.name: f"i{number}" for number, image in enumerate(shown)}
    parts = [
        *_head(report),
        *_tiles(report),
        *_findings(report, anchors),
        *_buckets(report),
        *_captions(report),
        *_folders(report),
        *_sheet(report, shown, anchors),
        *_foot(report),
    ]
    title = html_text(report.title, 120)
    return document(f"{title}: dataset report", parts)


def _head(report: DatasetReport) -> Iterator[str]:
    tone = "error" if report.stops else "warning" if report.of("warning") else "good"
    yield '<p class="over">Dataset report</p>'
    yield f"<h1><bdi>{html_text(report.title, 120)}</bdi></h1>"
    yield f'<p class="verdict {tone}">{html_text(verdict(report))}</p>'


def _tiles(report: DatasetReport) -> Iterator[str]:
    counts, schedule = report.counts, report.schedule
    facts = [(grouped(counts.get("train", 0)), "images to train")]
    facts += [(grouped(counts[name]), COUNTED[name]) for name in COUNTED if counts.get(name)]
    sizes = len(report.buckets)
    facts.append((grouped(sizes), "bucket" if sizes == 1 else "buckets"))
    if schedule.steps_per_epoch:
        facts.append((steps_an_epoch(report), "steps an epoch"))
    if schedule.steps and schedule.steps_per_epoch:
        facts.append((f"{schedule.epochs:.3g}", f"epochs in {grouped(schedule.steps)} steps"))
    yield from tiles(facts)


def _findings(report: DatasetReport, anchors: Mapping[str, str]) -> Iterator[str]:
    if not report.findings:
        return
    yield "<h2>What was found</h2>"
    for finding in report.findings:
        yield f'<section class="card finding {finding.severity}">'
        yield f"<div><i>{finding.severity}</i><b>{html_text(finding.title)}</b></div>"
        yield f"<p>{html_text(finding.remedy)}</p>"
        named = list(_named(finding, anchors))
        if named:
            rest = max(finding.count, len(finding.groups)) - len(named)
            yield "<ul>" + "".join(f"<li>{each}</li>" for each in named)
            if rest > 0 and len(named) == _NAMED:
                yield f'<li class="soft">and {grouped(rest)} more</li>'
            yield "</ul>"
        yield "</section>"


def _named(finding: Finding, anchors: Mapping[str, str]) -> Iterator[str]:
    if finding.groups:
        for group in finding.groups[:_NAMED]:
            names = " = ".join(_link(name, anchors) for name in group[:4])
            yield names + (f" and {grouped(len(group) - 4)} more" if len(group) > 4 else "")
        return
    details = finding.details if len(finding.details) == len(finding.names) else ()
    for number, name in enumerate(finding.names[:_NAMED]):
        detail = details[number] if details else ""
        distinct = detail and not detail.startswith(name)
        yield _link(name, anchors) + (
            f' <span class="soft">{html_text(detail, 160)}</span>' * bool(distinct)
        )
    if not finding.names:
        yield from (f"<bdi>{html_text(text, 240)}</bdi>" for text in finding.details[:_NAMED])


def _link(name: str, anchors: Mapping[str, str]) -> str:
    shown = f"<bdi>{html_text(name, 80)}</bdi>"
    return f'<a href="#{anchors[name]}">{shown}</a>' if name in anchors else shown


def _buckets(report: DatasetReport) -> Iterator[str]:
    if not report.buckets:
        return
    largest = max(each.samples for each in report.buckets)
    shown = sorted(report.buckets, key=lambda each: -each.samples)[:_BUCKETS]
    with_vram = any(each.vram_bytes is not None for each in shown)
    yield "<h2>Sizes they are trained at</h2>"
    yield '<div class="card table"><table><thead><tr><th>Bucket</th><th class="bar"></th>'
    yield '<th class="n">Images</th><th class="n">Batches an epoch</th>'
    yield ('<th class="n">VRAM, estimated</th>' if with_vram else "") + "</tr></thead><tbody>"
    for each in sorted(shown, key=lambda each: each.bucket):
        wide = max(1, round(100 * each.samples / max(1, largest)))
        yield f"<tr><td>{_size(each.bucket)}</td>"
        yield f'<td class="bar"><span style="width:{wide}%"></span></td>'
        yield f'<td class="n">{grouped(each.samples)}</td>'
        yield f'<td class="n">{grouped(each.batches)}</td>'
        vram = "" if each.vram_bytes is None else gibibytes(each.vram_bytes)
        yield (f'<td class="n">{vram}</td>' if with_vram else "") + "</tr>"
    yield "</tbody></table></div>"
    if len(shown) < len(report.buckets):
        yield f'<p class="soft">and {grouped(len(report.buckets) - len(shown))} smaller ones</p>'


def _captions(report: DatasetReport) -> Iterator[str]:
    captions = report.captions
    if captions.words is None:
        return
    words, tokens = captions.words, captions.tokens
    text = (
        f"{grouped(captions.different)} different texts of {words.shortest} to {words.longest} "
        f"words, {words.median} in the middle."
    )
    if tokens is not None and captions.limit is not None:
        text += f" The longest has {grouped(tokens.longest)} of {grouped(captions.limit)} tokens."
    yield f"<h2>Captions</h2>\n<p>{html_text(text)}</p>"
    if captions.frequent:
        each = (
            f"<li>{html_text(w, 40)}<small>{grouped(n)}</small></li>" for w, n in captions.frequent
        )
        yield f'<ul class="words">{"".join(each)}</ul>'


def _folders(report: DatasetReport) -> Iterator[str]:
    if len(report.folders) < 2:
        return
    yield '<h2>Folders</h2>\n<div class="card table"><table><thead><tr><th>Folder</th><th>Role</th>'
    yield '<th class="n">Images</th><th class="n">Repeats</th><th class="n">Weight</th>'
    yield "<th>Trigger word</th></tr></thead><tbody>"
    for each in report.folders:
        yield f"<tr><td><bdi>{html_text(each.path, 160)}</bdi></td><td>{each.role}</td>"
        yield f'<td class="n">{grouped(each.images)}</td><td class="n">{each.repeats}</td>'
        yield f'<td class="n">{each.weight:g}</td><td>{html_text(each.trigger_word, 60)}</td></tr>'
    yield "</tbody></table></div>"


def _sheet(
    report: DatasetReport,
    shown: Sequence[ReportedImage],
    anchors: Mapping[str, str],
) -> Iterator[str]:
    if not shown:
        return
    small = thumbnails(shown, SIDE)
    severities: dict[str, list[Finding]] = {}
    for finding in report.findings:
        for name in finding.names:
            severities.setdefault(name, []).append(finding)
    yield "<h2>Images</h2>"
    text = "The bright part is what is trained; the dark part is cut off."
    if len(shown) < len(report.images):
        left = grouped(len(report.images) - len(shown))
        text += f" {grouped(len(shown))} of {grouped(len(report.images))} images are shown: some "
        text += f"of each finding, and evenly of each bucket. {left} are left out."
    yield f'<p class="soft">{html_text(text)}</p>'
    buckets: dict[Bucket, list[ReportedImage]] = {}
    for image in shown:
        buckets.setdefault(image.bucket, []).append(image)
    totals = {each.bucket: each.samples for each in report.buckets}
    for size, images in sorted(buckets.items()):
        total = totals.get(size, len(images))
        many = f"{grouped(total)} image" + "s" * (total != 1)
        yield f"<h3>{_size(size)} <small>{many}</small></h3>\n"
        yield '<div class="sheet">'
        for image in images:
            found = severities.get(image.name, [])
            yield from _figure(image, anchors[image.name], small.get(image.name, ()), found)
        yield "</div>"


def _figure(
    image: ReportedImage,
    anchor: str,
    shown: Sequence[Image.Image],
    found: Sequence[Finding],
) -> Iterator[str]:
    yield f'<figure id="{anchor}">'
    if not shown:
        yield '<div class="frame none">cannot be shown</div>'
    for small in shown[:1]:
        # As wide as the frame's greatest height lets it be, so that nothing is distorted.
        wide = min(SIDE, round(240 * small.width / small.height))
        ratio = f"{small.width}/{small.height}"
        yield f'<div class="frame" style="aspect-ratio:{ratio};width:{wide}px">'
        alt = html_text(image.name, 80)
        yield f'<img alt="{alt}" decoding="async" src="{embedded(small)}">'
        yield from _crop(image.placements[0] if image.placements else None)
        yield "</div>"
    yield from _beside(image, shown)
    yield f"<figcaption><b><bdi>{html_text(image.name, 80)}</bdi></b>"
    yield f"{_by(image.width, image.height)}{_facts(image)}"
    for finding in found[:3]:
        text = html_text(_short(finding, image.name), 120)
        yield f'<br><em class="{finding.severity}">{text}</em>'
    if image.captions and image.captions[0]:
        yield f"<p><bdi>{html_text(image.captions[0])}</bdi></p>"
    yield "</figcaption></figure>"


def _crop(at: Placement | None) -> Iterator[str]:
    if at is not None and at.cut > 0.005:
        left, top, right, bottom = (round(100 * each, 2) for each in at.crop)
        place = f"left:{left}%;top:{top}%;width:{right - left:.2f}%;height:{bottom - top:.2f}%"
        yield f'<div class="crop" style="{place}"></div>'


def _beside(image: ReportedImage, shown: Sequence[Image.Image]) -> Iterator[str]:
    """Further frames of a clip, what its mask leaves of an image, and control images."""
    preview = masked_thumbnail(image, shown[0] if shown else None, _BESIDE_SIDE)
    parts = [*shown[1:], *(() if preview is None else (preview,))]
    for control in image.controls[:_BESIDE]:
        own = ReportedImage(
            "", control.path, image.role, folder=0, width=0, height=0, placements=(), captions=()
        )
        parts += thumbnails([own], _BESIDE_SIDE).get("", ())
    if parts:
        images = (f'<img alt="" src="{embedded(part)}">' for part in parts)
        yield f'<div class="beside">{"".join(images)}</div>'


def _facts(image: ReportedImage) -> str:
    parts = []
    if image.role != "train":
        parts.append("held out" if image.role == "validation" else "regularization")
    if image.placements and image.placements[0].cut > 0.005:
        parts.append(f"{image.placements[0].cut:.0%} cut off")
    if image.repeats != 1:
        parts.append(f"{image.repeats} times")
    if image.tokens is not None:
        parts.append(f"{image.tokens} tokens")
    if len(image.placements) > 1:
        parts.append(f"at {len(image.placements)} sizes")
    return "".join(f" · {part}" for part in parts)


def _short(finding: Finding, name: str) -> str:
    """What a finding says of one image."""
    one = Finding(finding.kind, finding.severity, (name,))
    return one.title.removeprefix("1 image ").removeprefix("1 clip ").removeprefix("1 ")


def _foot(report: DatasetReport) -> Iterator[str]:
    text = "Made by Adapter Trainer. This file is whole: it loads nothing."
    yield f"<footer>{html_text(text + ' ' + looked_sentence(report))}</footer>"
