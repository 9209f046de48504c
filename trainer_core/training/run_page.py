"""A run as one HTML file for those who have no ComfyUI: course, images, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.report.html_document import document, html_text, tiles
from ..data.report.image_fingerprints import file_bytes, small_image
from ..data.report.thumbnails import embedded
from ..errors import DatasetError, InputError
from ..filesystem.text_files import read_text
from ..inference.preview_files import preview_files
from ..printable import grouped
from ..types import StepResult
from .checkpoints.run_folder import failure_reason, read_record, run_status
from .checkpoints.run_names import METRICS, RUN_FILE, SAMPLES
from .metrics.metrics_file import read_metrics
from .metrics.tracker import RunningMeans

_SIDE = 192
_ROWS = 12
"""So many steps of previews: the first, the last, and others evenly between."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 260, 56, 24
_SMOOTHING = 0.95
_STYLE = """
.curve { display: block; width: 100%; height: auto; margin-top: 12px; }
.curve path { fill: none; stroke: var(--accent); stroke-width: 2; }
.curve .held { stroke: var(--warning); stroke-dasharray: 6 4; }
.curve line { stroke: var(--line); }
.curve text { fill: var(--soft); font-size: 12px; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(120px, 1fr)); gap: 8px; }
.samples img { width: 100%; border-radius: 6px; display: block; }
pre { padding: 14px 16px; overflow-x: auto; white-space: pre-wrap; font-size: 12.5px; }
"""


def run_page(version: Path) -> str:
    """The page.

    Args:
        version: A version's folder; it may be that of a run which trains now.

    Raises:
        InputError: When its record is damaged.
    """
    record = read_record(version)
    try:
        steps = [each for each in read_metrics(version / METRICS) if not each.skipped]
    except (InputError, OSError):
        steps = []
    name = f"{version.parent.name}/{version.name}"
    parts = [
        '<p class="over">Run of Adapter Trainer</p>',
        f"<h1><bdi>{html_text(name, 120)}</bdi></h1>",
        *_verdict(version, record),
        *_tiles(record, steps),
        *_curve(steps),
        *_samples(version / SAMPLES),
        *_settings(version / RUN_FILE),
        *_versions(record),
    ]
    return document(f"{html_text(name, 120)}: run", parts, _STYLE)


def _verdict(version: Path, record: Mapping[str, Any]) -> Iterator[str]:
    status = run_status(version, record)
    tone = {"done": "good", "failed": "error"}.get(status, "warning")
    lost = "Ended without a word: killed, or the machine went down"
    word = lost if status == "lost" else status
    yield f'<p class="verdict {tone}">{html_text(word, 60).capitalize()}</p>'
    if lines := failure_reason(record).splitlines():
        yield f'<pre class="card">{"<br>".join(html_text(each) for each in lines)}</pre>'


def _tiles(record: Mapping[str, Any], steps: Sequence[StepResult]) -> Iterator[str]:
    made = steps[-1].step if steps else record.get("step", 0)
    facts = [(f"{made} / {record.get('steps', made)}", "steps")]
    if steps:
        facts.append((f"{_smoothed(steps)[-1]:.4g}", "loss, smoothed"))
        seconds = sum(each.step_seconds for each in steps)
        facts.append((f"{seconds / 60:.1f}", "minutes of steps"))
        facts.append((f"{seconds / len(steps):.3g}", "seconds a step"))
    held = [each for each in steps if each.validation_loss is not None]
    if held:
        best = min(held, key=lambda each: each.validation_loss or 0.0)
        facts.append((f"{best.validation_loss:.4g}", f"lowest held-out loss, step {best.step}"))
    yield from tiles(facts)


def _smoothed(steps: Sequence[StepResult]) -> list[float]:
    means = RunningMeans(_SMOOTHING)
    return [means.add("loss", each.loss) for each in steps]


def _curve(steps: Sequence[StepResult]) -> Iterator[str]:
    if not steps:
        return
    losses = [(each.step, loss) for each, loss in zip(steps, _smoothed(steps), strict=True)]
    held = [(s.step, s.validation_loss) for s in steps if s.validation_loss is not None]
    values = [value for _, value in (*losses, *held)]
    low, high = min(values), max(values)
    first, last = losses[0][0], losses[-1][0]
    room = (high - low) or abs(high) or 1.0

    def path(points: Sequence[tuple[int, float]]) -> str:
        # A point for each pixel is all that can be seen.
        shown = points[:: max(1, len(points) // _WIDTH)]
        if points and shown[-1] != points[-1]:
            shown = [*shown, points[-1]]
        across = (_WIDTH - _LEFT) / max(1, last - first)
        return "M" + "L".join(
            f"{_LEFT + (step - first) * across:.1f},"
            f"{8 + (high - value) / room * (_HEIGHT - _BOTTOM - 16):.1f}"
            for step, value in shown
        )

    bottom = _HEIGHT - _BOTTOM
    yield "<h2>Loss</h2>"
    yield f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Loss">'
    for value, top in ((high, 8), (low, bottom - 8)):
        yield f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{top}" y2="{top}"/>'
        yield f'<text x="{_LEFT - 6}" y="{top + 4}" text-anchor="end">{value:.3g}</text>'
    for step, place, anchor in ((first, _LEFT, "start"), (last, _WIDTH, "end")):
        yield f'<text x="{place}" y="{_HEIGHT - 6}" text-anchor="{anchor}">step {step}</text>'
    yield f'<path d="{path(losses)}"/>'
    if held:
        yield f'<path class="held" d="{path(held)}"/>'
    yield "</svg>"
    if held:
        yield '<p class="soft">Dashed: loss on held-out images.</p>'


def _samples(folder: Path) -> Iterator[str]:
    try:
        found = sorted(
            (each for each in folder.iterdir() if each.name.isdecimal()), key=lambda e: int(e.name)
        )
    except OSError:
        return
    every = max(1, -(-len(found) // _ROWS))
    shown = [each for i, each in enumerate(found) if i == 0 or (len(found) - 1 - i) % every == 0]
    if shown:
        yield "<h2>Previews</h2>"
    for step in shown:
        number = int(step.name)
        yield f"<h3>{'Before training' if number == 0 else f'Step {grouped(number)}'}</h3>"
        yield '<div class="samples">'
        for file in preview_files(step):
            try:
                source = embedded(small_image(file_bytes(file), _SIDE))
            except Exception:  # noqa: BLE001 - a damaged image is left out, whatever Pillow says
                continue
            yield f'<img src="{source}" alt="step {number}, prompt {int(file.stem) + 1}">'
        yield "</div>"


def _settings(file: Path) -> Iterator[str]:
    try:
        lines = read_text(file, lambda reason: DatasetError(reason, "", "")).splitlines()
    except InputError:
        return
    yield "<h2>Settings</h2>"
    yield f'<pre class="card">{"<br>".join(html_text(each) for each in lines)}</pre>'


def _versions(record: Mapping[str, Any]) -> Iterator[str]:
    versions = record.get("versions")
    if isinstance(versions, Mapping):
        text = ", ".join(
            f"{html_text(str(k), 40)} {html_text(str(v), 40)}" for k, v in versions.items()
        )
        yield f'<p class="soft">{text}</p>'
