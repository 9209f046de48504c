"""CPU seconds of scanning and planning a large dataset.

Samples are small PNG and JPEG files with a caption each, in one folder or in a deep tree. What is
measured does not depend on the number of pixels: a scan reads headers. Seconds are those that the
CPU worked for this process, the system's part included, on one thread; the least of the rounds
counts. Where the machine's files are cold, the disk is waited for beside.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from PIL import Image

from benchmarks.measuring.record import RESULTS, origin, write_record
from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.sources.folder_problems import Scan
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.filesystem.allowed_folders import AllowedFolders

SIZES = ((64, 64), (96, 64), (64, 96), (80, 64), (33, 47))
RESOLUTION = 64
MULTIPLE = 16
PER_FOLDER = 100


@dataclass(frozen=True)
class Row:
    """One operation on all samples.

    Attributes:
        name: What was done.
        samples: How many there are.
        seconds: CPU seconds.
        microseconds: CPU microseconds for each sample.
    """

    name: str
    samples: int
    seconds: float
    microseconds: float


def write_samples(folder: Path, count: int, *, tree: bool) -> None:
    """Write images and their captions, all in one folder or a hundred in each of a tree."""
    encoded = [_encoded(kind, size) for kind in ("PNG", "JPEG") for size in SIZES]
    for number in range(count):
        content, extension = encoded[number % len(encoded)]
        place = folder / _branch(number // PER_FOLDER) if tree else folder
        if number % PER_FOLDER == 0:
            place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:07d}{extension}").write_bytes(content)
        (place / f"{number:07d}.txt").write_text(f"a thing, its number is {number}")


def measure(folder: Path, count: int, rounds: int) -> list[Row]:
    """Measure one folder of samples.

    Args:
        folder: Where `write_samples` wrote them.
        count: How many there are.
        rounds: How often each is done.
    """
    settings = DatasetSection(path=str(folder), resolution=RESOLUTION)
    memory, within = FileMemory(None), AllowedFolders([folder])
    found = scan_all(settings, remembered=memory)
    if len(found.samples) != count:
        raise SystemExit(f"{len(found.samples)} samples of {count}: {found.problems[:3]}")
    operations: dict[str, Callable[[], object]] = {
        "scan": lambda: scan_all(settings),
        "scan within allowed folders": lambda: scan_all(settings, within),
        "scan with remembered headers": lambda: scan_all(settings, remembered=memory),
        "plan": lambda: _plan(found, settings),
        "scan and plan": lambda: _plan(scan_all(settings), settings),
    }
    return [_row(name, operation, count, rounds) for name, operation in operations.items()]


def bytes_per_sample(folder: Path, count: int) -> int:
    """Bytes that the result of a scan takes for each sample."""
    settings = DatasetSection(path=str(folder), resolution=RESOLUTION)
    scan_all(settings)
    tracemalloc.start()
    found = scan_all(settings)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.samples) == count
    return round(taken / count)


def _plan(found: Scan, settings: DatasetSection) -> object:
    return plan_buckets(found.samples, settings, MULTIPLE, lambda width, height, _: (width, height))


def _row(name: str, operation: Callable[[], object], count: int, rounds: int) -> Row:
    seconds = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        operation()
        seconds = min(seconds, time.process_time() - started)
    return Row(name, count, round(seconds, 3), round(seconds / count * 1e6, 2))


def _encoded(kind: str, size: tuple[int, int]) -> tuple[bytes, str]:
    written = io.BytesIO()
    Image.new("RGB", size, (10, 60, 110)).save(written, kind)
    return written.getvalue(), ".png" if kind == "PNG" else ".jpg"


def _branch(number: int) -> Path:
    return Path(*(f"d{digit}" for digit in f"{number:05d}"))


def main() -> None:
    """Measure, print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description="CPU time of scanning and planning a dataset.")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the samples lie for a while")
    parser.add_argument("--output", type=Path, default=RESULTS / "dataset_scan.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured, rows, taken = origin(), {}, 0
    for name, count, tree in (
        ("one folder", arguments.samples, False),
        ("a tree", arguments.samples, True),
        ("a tenth, one folder", arguments.samples // 10, False),
    ):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write_samples(Path(folder), count, tree=tree)
            rows[name] = measure(Path(folder), count, arguments.rounds)
            taken = bytes_per_sample(Path(folder), count) if "tenth" in name else taken
    for name, each in rows.items():
        for row in each:
            print(f"{name:22}{row.name:32}{row.seconds:9.2f} s{row.microseconds:9.1f} us/sample")
    print(f"a scan's result takes {taken} bytes for each sample")
    result = {
        "benchmark": "dataset_scan",
        "samples": arguments.samples,
        "rounds": arguments.rounds,
        "measured": measured,
        "bytes_per_sample": taken,
        "folders": {name: [asdict(row) for row in each] for name, each in rows.items()},
    }
    write_record(arguments.output, result)


if __name__ == "__main__":
    main()
