"""What the command line prints, progress too: the only module that writes to the terminal.

Text for people or, on request, one JSON object a line for programs. Results go to the standard
output, errors to the standard error (with ``--json`` both to the output, as events).

File names, captions, tensor keys and headers come from anybody. So everything for people passes
`printable` here, and what is long is told in short; JSON escapes by itself and is told whole.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ..config.yaml_dialect import format_yaml
from ..diffusion.noise_bands import histogram_text
from ..errors import TrainerError
from ..printable import LONGEST, MOST, grouped, printable, shortened, single_line
from ..requirements import shell_word
from ..types import RunResult, RunSummary, StepResult

MOST_ENTRIES = 400
"""Entries of one table in a report for people; the headers of common files have about a hundred."""

_WHOLE = "--json tells all"
_LONGEST_MESSAGE = 20_000  # characters of one part of an error; a run file may have many mistakes


def prepare_streams() -> None:
    """Keep a terminal that lacks a character from ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    if os.name == "nt" and sys.stdout and sys.stdout.isatty():
        # Any command lets a console of Windows take escape sequences, which progress has.
        os.system("")


class _PrintableFormatter(logging.Formatter):
    """Messages of libraries too name files."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(shortened(super().format(record), _LONGEST_MESSAGE))


def prepare_log() -> None:
    """Send warnings of the trainer and of libraries to the standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def show(text: str) -> None:
    """Print text for a person."""
    print(printable(text), flush=True)


def show_image(path: Path) -> None:
    """Print an image on a terminal that can show it; elsewhere nothing, its path stands alone."""
    if can_show():
        print("\n".join(terminal_lines(path)), flush=True)


def show_report(report: Mapping[str, Any], *, as_json: bool, outcome: str = "") -> None:
    """Print a finished report: YAML for a person, one JSON object for a program.

    Args:
        outcome: What came of it in a sentence, which a person reads last, where the eye is.
    """
    if as_json:
        show_json({**report, "outcome": outcome} if outcome else report)
        return
    show(format_yaml(in_short(as_json_values(report))).rstrip("\n"))
    if outcome:
        show(f"\n{outcome}")


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(as_json_values(value), allow_nan=False), flush=True)


def show_error(error: TrainerError, *, as_json: bool) -> None:
    """Print an error in its three parts."""
    if as_json:
        parts = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
        show_json({"event": "error", **parts, "exit_code": error.exit_code})
    else:
        short = TrainerError(
            shortened(error.found, _LONGEST_MESSAGE),
            shortened(error.expected, _LONGEST_MESSAGE),
            shortened(error.remedy, _LONGEST_MESSAGE),
        )
        print(printable(str(short)), file=sys.stderr, flush=True)


def show_note(text: str) -> None:
    """Print what a person should know of the input beside every kind of result."""
    print(text, file=sys.stderr, flush=True)


def overwrite_line(text: str, stream: TextIO | None = None) -> None:
    """Replace the terminal's current line; an empty text clears it."""
    # Erase to the end of the line, so that a shorter text leaves nothing of a longer one.
    print(f"\r{single_line(text)}\x1b[K", end="", file=stream or sys.stdout, flush=True)


def as_json_values(value: Any) -> Any:
    """Turn a value into what JSON and YAML know; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): as_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def in_short(value: Any) -> Any:
    """Cut off long texts, lists and tables of plain values, and say how much there is more."""
    if isinstance(value, Mapping):
        kept = {shortened(key): in_short(item) for key, item in list(value.items())[:MOST_ENTRIES]}
        return kept | _rest(len(value) - MOST_ENTRIES)
    if isinstance(value, list):
        rest = len(value) - MOST
        kept = [in_short(item) for item in value[:MOST]]
        return [*kept, f"and {grouped(rest)} more ({_WHOLE})"] if rest > 0 else kept
    return shortened(value, LONGEST) if isinstance(value, str) else value


def _rest(count: int) -> dict[str, str]:
    return {"...": f"and {grouped(count)} more ({_WHOLE})"} if count > 0 else {}


_WINDOW = 20
_SECONDS_BETWEEN_LINES = 10.0


def bar_text(done: int, total: int, rest: str, columns: int) -> str:
    """Draw a progress bar on one line.

    Args:
        total: All parts, at least 1.

    Returns:
        At most ``columns - 1`` characters, because a full line would wrap.
    """
    share = min(max(done / max(total, 1), 0.0), 1.0)
    head, tail = f"{share:4.0%} ", f" {done}/{total} {rest}"
    size = min(30, columns - 1 - len(head) - len(tail) - 2)
    bar = f"[{'#' * int(share * size):<{size}}]" if size >= 5 else ""
    return (head + bar + tail)[: columns - 1]


def duration_text(seconds: float) -> str:
    """Write a time as ``3:07`` (minutes) or ``1:02:03`` (hours)."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def summary_text(summary: RunSummary) -> str:
    """What a run is about to do, one line for each fact."""
    samples = sum(summary.samples_per_bucket.values())
    buckets = ", ".join(f"{n} at {size}" for size, n in summary.samples_per_bucket.items())
    facts = {
        "Family": summary.family,
        "Base": summary.base,
        "Device": f"{summary.device}, {summary.precision}",
        "Adapter": summary.adapter,
        "Layers": f"{summary.layers} adapted, {summary.parameters:,} trainable parameters",
        "Samples": f"{samples} ({buckets})",
        "Steps": f"{summary.steps}",
        "Keeps": summary.preserved,
        "Folder": f"{summary.folder}",
    }
    lines = [f"{name + ':':<9}{fact}" for name, fact in facts.items()]
    return "\n".join([*lines, *summary.plan])


def result_text(result: RunResult) -> str:
    """Where a run left its files, the adapter and what to do next as the last lines."""
    if result.status == "cancelled" and not result.adapters:
        return (
            f"Cancelled before the first step; what is encoded stays in {result.folder}, and the "
            "same command goes on there."
        )
    if result.status == "cancelled":
        lines = [f"Cancelled after step {result.step}; resume=latest goes on from there."]
    else:
        lines = [f"{result.status.capitalize()} after {result.step} steps."]
    lines += [result.stopped_early] if result.stopped_early else []
    if result.levels:
        lines.append(f"Noise levels of {sum(result.levels)} samples:")
        lines += [f"  {line}" for line in histogram_text(result.levels)]
    lines += [f"{'Image:':<9}{path}" for path in result.pictures]
    lines.append(f"{'Folder:':<9}{result.folder}")
    if result.best is not None:
        best = result.best
        loss = f"loss {best.loss:.4f} on held-out images; resume=best goes on from it"
        lines.append(f"{'Best:':<9}{best.adapter} (step {best.step}, {loss})")
    lines += [f"{'Adapter:':<9}{path}" for path in result.adapters]
    if result.status == "cancelled":
        lines.append(f"{'Next:':<9}the same command with resume=latest")
    elif result.adapters:
        words = (str(result.folder / "run.yaml"), f"adapter={result.adapters[0]}", "prompt=TEXT")
        # Shells of Windows know no single quotes.
        line = " ".join(map(shell_word, words)) if os.name == "nt" else shlex.join(words)
        lines.append(f"{'Next:':<9}adapter-trainer sample {line}")
    return "\n".join(lines)


class Pace:
    """Speed and smoothed loss of the last steps."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._losses: deque[float] = deque(maxlen=_WINDOW)

    def step_text(self, result: StepResult, steps: int) -> str:
        """Take a step in and describe it: loss, seconds a step, time left.

        The loss is the mean of the last 20 steps: single ones jump with their sigma.
        """
        self._seconds.append(result.step_seconds)
        if not result.skipped:
            self._losses.append(result.loss)
        pace = sum(self._seconds) / len(self._seconds)
        loss = sum(self._losses) / len(self._losses) if self._losses else math.nan
        left = duration_text(pace * (steps - result.step))
        outcome = "left out" if result.skipped else f"loss {loss:.4f}"
        return f"{outcome}, {pace:.2f} s/step, {left} left"


class LineRate:
    """Decides which progress is worth a line in a log: the first, the last, one in ten seconds.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def due(self, done: int, total: int) -> bool:
        """Whether to print now; counts as printed when it is."""
        now = self._clock()
        if self._last is None or done >= total or now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            return True
        return False


class LayerProgress:
    """Shows how many layers are done: a bar on a terminal, else a line from time to time.

    Args:
        as_json: One JSON object a line instead of text.
    """

    def __init__(self, what: str, *, as_json: bool) -> None:
        self._what = what
        self._as_json = as_json
        self._terminal = sys.stdout.isatty() and not as_json
        self._rate = LineRate()
        self._drawn = False

    def __call__(self, done: int, total: int, name: str) -> None:
        """Take note of a layer."""
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            overwrite_line(bar_text(done, total, f"{self._what} {name}", columns))
            self._drawn = True
        elif self._rate.due(done, total):
            if self._as_json:
                show_json({"event": self._what, "done": done, "total": total, "layer": name})
            else:
                show(f"{self._what} {done}/{total}")

    def __enter__(self) -> LayerProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            overwrite_line("")


_UPPER_HALF = "\N{UPPER HALF BLOCK}"
_PLAIN = "\x1b[0m"
_COLUMNS = 96
_TRUECOLOR = frozenset({"truecolor", "24bit"})


def can_show() -> bool:
    """Whether the output is a terminal that says it has 24-bit colours."""
    colours = os.environ.get("COLORTERM", "").lower() in _TRUECOLOR or "WT_SESSION" in os.environ
    if not (sys.stdout.isatty() and colours) or "NO_COLOR" in os.environ:
        return False
    try:
        _UPPER_HALF.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def terminal_lines(path: Path, columns: int = _COLUMNS) -> list[str]:
    """An image as lines of text with colours.

    Args:
        columns: Most characters in a line; a larger image is made smaller.
    """
    from PIL import Image

    from ..data.image import on_white

    with Image.open(path) as opened:
        image = on_white(opened).convert("RGB")
    width = min(columns, image.width)
    height = max(2, round(image.height * width / image.width) // 2 * 2)
    pixels = image.resize((width, height), Image.Resampling.LANCZOS).tobytes()
    rows = [pixels[start : start + 3 * width] for start in range(0, len(pixels), 3 * width)]
    return [
        "".join(_cell(above[x : x + 3], below[x : x + 3]) for x in range(0, 3 * width, 3)) + _PLAIN
        for above, below in zip(rows[::2], rows[1::2], strict=True)
    ]


def _cell(above: bytes, below: bytes) -> str:
    front, back = (";".join(map(str, colour)) for colour in (above, below))
    return f"\x1b[38;2;{front}m\x1b[48;2;{back}m{_UPPER_HALF}"
