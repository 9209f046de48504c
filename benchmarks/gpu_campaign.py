"""Everything that only a GPU can tell, in a few commands of minutes: ``make gpu``.

It says what the machine is, runs the light GPU tests, trains full-size bases of random numbers in
every way that `campaign.cells` lists, measures layers beside the peers that are here, and runs the
heavy tests. Each result is a line of ``results.jsonl`` in the output folder as soon as it is there;
a further call goes on with what is missing. Whatever a cell dies of is its result. Nothing is
fetched; what `make gpu-wheels` put into ``build/gpu_wheels`` is added to the packages that the
machine has.

This process imports no torch, so that it outlives whatever happens to one that does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from trainer_core.commands.allocator import set_allocator

from .campaign.cells import Cell, groups, to_measure
from .campaign.lines import NAME, begun, end, read_lines, write_line
from .campaign.packages import ROOT, WHEELS, add_missing, carried_commit

PARTS = ("light", "bases", "layers", "tests")
HEAVY = ("test_block_swap.py", "test_changing_plan.py", "test_runs.py")
"""GPU tests that take long, or measure what others take of the device."""

SAMPLES = ROOT / "build" / "gpu_samples"
"""Bases, which are holes in files, and samples: not part of the results."""

LAYERS_FILE = "layers_cuda.json"
LAYER_SECTIONS = ("layer 3072->3072 bf16 cuda", "block", "layer 3072->12288 bf16 cuda", "fidelity")
LAYER_SECONDS, LONGEST_LAYERS = 60, 240
TEST_SECONDS, LONGEST_TESTS, LONGEST_LIGHT = 20, 150, 75
LONGEST_CELL = 240
GRACE = 12
"""Seconds beyond the budget after which what still runs is stopped, and left for the next call."""

CRASHES = 3
"""Processes in a row that died before they measured anything, after which the part is given up."""

FAILED = 75
"""A measuring process's way of saying that its cell failed and is written down."""

_TAIL = 3000


class Campaign:
    """One call.

    Args:
        output: Takes the results, and has those of earlier calls.
        deadline: Monotonic time at which nothing new is begun.
        size: Of the bases: ``full``, or ``tiny`` for a rehearsal.
        device: ``cuda``, or ``cpu`` for a rehearsal.
        environment: Of the processes that measure.
    """

    def __init__(
        self, output: Path, deadline: float, size: str, device: str, environment: Mapping[str, str]
    ) -> None:
        self.output, self.size, self.device = output, size, device
        self.environment = dict(environment)
        self.call = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
        self._deadline = deadline

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self._deadline - time.monotonic()

    def describe(self, commit: str | None) -> str:
        """Write down what the machine is; what makes it none for this, or nothing.

        Args:
            commit: Of the copy of the tree, for one without git.
        """
        command = ["-m", "benchmarks.campaign.machine", self.device]
        status, told = self._run(command, 120)
        try:
            facts = json.loads(told.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return f"the packages here cannot be imported (status {status}): {told[-1000:]}"
        if "refused" in facts:
            return facts["refused"]
        if facts["commit"] == "unknown" and commit:
            facts["commit"] = commit
        self._write("machine", origin=facts)
        print(json.dumps(facts, indent=1), flush=True)
        return ""

    def light(self) -> None:
        """Run each file of light tests in a process; all at the same time."""
        done = self._tested()
        files = [path for path in _test_files() if path.name not in (*HEAVY, *done)]
        if self.left < TEST_SECONDS:
            return
        with ThreadPoolExecutor() as together:
            list(together.map(lambda path: self._test(path, LONGEST_LIGHT), files))

    def tests(self) -> None:
        """Run each file of heavy tests by itself."""
        for path in _test_files():
            if path.name not in self._tested() and self.left >= TEST_SECONDS:
                self._test(path, LONGEST_TESTS)

    def _tested(self) -> set[str]:
        lines = read_lines(self.output)
        return {str(line.get("file")) for line in lines if line["part"] == "tests"}

    def _test(self, path: Path, longest: float) -> None:
        """Run a file, and write down what it says unless the budget ended before it did."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = ["-m", "pytest", str(path), "-m", "gpu", "-q", "-rs", "--tb", "short"]
            command += ["-p", "no:cacheprovider", "--basetemp", f"{folder}/tests"]
            started, limit = time.monotonic(), min(longest, self.left)
            status, text = self._run([*command, "--junitxml", str(report)], limit)
            row = {"file": path.name, "status": status, **counted(report)}
        row["seconds"] = round(time.monotonic() - started, 1)
        if status == -signal.SIGKILL and limit < longest:
            return
        self._write("tests", **row, **({"output": text[-_TAIL:]} if status else {}))
        self._say(path.name, row)

    def bases(self) -> None:
        """Measure the cells."""
        crashes = 0
        while self.left > 0 and crashes < CRASHES:
            known = self.known()
            batch = first_batch(to_measure(known, self.call))
            if not batch:
                return
            names = json.dumps([cell.name for cell in batch])
            command = ["-m", "benchmarks.campaign.measure", "--output", str(self.output)]
            command += ["--size", self.size, "--device", self.device, "--call", self.call]
            command += ["--deadline", str(time.time() + self.left), "--samples", str(SAMPLES)]
            command += ["--cells", names]
            end(self.output)
            written = len(read_lines(self.output))
            status, told = self._run(command, self.left + GRACE, self._stuck)
            for line in read_lines(self.output)[written:]:
                self._say(line.get("cell", line["part"]), line)
            changed = self.known() != known
            cell = begun(self.output)
            if status not in (0, FAILED) and self.left > 0:
                name = cell or batch[0].name
                place = next((each for each in batch if each.name == name), batch[0])
                row = {"status": "crashed", "error": f"status {status}: {told[-_TAIL:]}"}
                self._write("bases", **self._place(place), **row)
                crashes = 0 if changed else crashes + 1
            elif not changed:
                return  # Nothing fits what is left.

    def layers(self) -> None:
        """Measure each section of layers by itself."""
        rows = [line for line in read_lines(self.output) if line["part"] == "layers"]
        done = {line.get("section") for line in rows}
        for section in LAYER_SECTIONS:
            if section in done or self.left < LAYER_SECONDS or self.device != "cuda":
                continue
            command = ["-m", "benchmarks.layers", "--device", "cuda", "--rounds", "5"]
            command += ["--modes", "eager,graphed", "--only", f"^{section}"]
            command += ["--output", str(self.output / LAYERS_FILE)]
            status, told = self._run(command, min(LONGEST_LAYERS, self.left + GRACE))
            if status and self.left <= 0:
                return
            row = {"section": section, "status": status, "output": told[-_TAIL:]}
            self._write("layers", **row)
            print(told, flush=True)

    def pending(self, parts: Sequence[str]) -> int:
        """Cells, and files of tests, that have no result yet."""
        names = {path.name for path in _test_files()}
        names &= {
            *(HEAVY if "tests" in parts else ()),
            *(names.difference(HEAVY) if {"light", "tests"} & {*parts} else ()),
        }
        cells = to_measure(self.known(), self.call) if "bases" in parts else ()
        return len(cells) + len(names - self._tested())

    def known(self) -> dict[str, str]:
        """Each cell that has a result, to the last call that gave it."""
        return {
            line["cell"]: line["call"]
            for line in read_lines(self.output)
            if line["part"] == "bases" and line.get("size") == self.size and "cell" in line
        }

    def _place(self, cell: Cell) -> dict[str, Any]:
        return {
            "cell": cell.name,
            "size": self.size,
            "family": cell.family,
            "pixels": cell.pixels,
            "way": cell.way_name,
        }

    def _stuck(self, since: dict[str, float]) -> bool:
        """Whether a cell has taken longer than any may."""
        name = begun(self.output) or ""
        now = time.monotonic()
        return now - since.setdefault(name, now) > LONGEST_CELL

    def _run(
        self,
        command: Sequence[str],
        limit: float,
        stuck: Callable[[dict[str, float]], bool] | None = None,
    ) -> tuple[int, str]:
        """Run a Python process to its end, or to a limit; its status and the end of its output."""
        since: dict[str, float] = {}
        until = time.monotonic() + limit
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    if time.monotonic() > until or (stuck is not None and stuck(since)):
                        os.killpg(process.pid, signal.SIGKILL)
                    time.sleep(0.2)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            log.seek(0)
            return process.wait(), log.read().decode(errors="replace")

    def _write(self, part: str, **values: Any) -> None:
        write_line(self.output, {"part": part, "call": self.call, **values})

    def _say(self, name: str, row: Mapping[str, Any]) -> None:
        shown = ("status", "seconds", "peak_bytes", "left_bytes", "passed", "failed", "skipped")
        told = ", ".join(f"{key} {row[key]}" for key in shown if row.get(key) is not None)
        for each in (row.get("error"), *row.get("failures", ())):
            told += f"\n    {each[:400]}" if each else ""
        print(f"[{self.left:4.0f} s left] {name}: {told}", flush=True)


def _test_files() -> list[Path]:
    return sorted((ROOT / "tests" / "gpu").glob("test_*.py"))


def first_batch(cells: Sequence[Cell]) -> list[Cell]:
    """The next cells that one process measures."""
    found: list[Cell] = []
    for group in groups(cells):
        if found and (group[0].way.alone or found[-1].way.alone):
            break
        found += group
    return found


def counted(report: Path) -> dict[str, Any]:
    """What pytest's report says."""
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        suite = None
    if suite is None:
        return {"passed": 0, "failed": None, "skipped": 0, "failures": []}
    bad = [
        f"{case.get('name')}: {(found.get('message') or '')[:400]}"
        for case in suite.iter("testcase")
        for kind in ("failure", "error")
        for found in case.iter(kind)
    ]
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    return {
        "passed": total - skipped - len(bad),
        "failed": len(bad),
        "skipped": skipped,
        "failures": bad,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, as long as there is time."""
    given = _parse(words)
    try:
        return _measure(given)
    except OSError as error:
        print(
            f"Found: {error}\n"
            f"Expected: room in {given.output}, and earlier results that can be read\n"
            "To do: free some room or name another folder, and call it again: what was measured is "
            "kept.",
            file=sys.stderr,
        )
        return 2


def _measure(given: argparse.Namespace) -> int:
    started = time.monotonic()
    given.output.mkdir(parents=True, exist_ok=True)
    for name in (NAME, LAYERS_FILE):
        known = given.earlier / name if given.earlier else None
        if known is not None and known.is_file() and not (given.output / name).exists():
            shutil.copyfile(known, given.output / name)
    site = ROOT / "build" / "gpu_site"
    try:
        added = add_missing(given.wheels, site)
    except RuntimeError as error:
        return _refuse(f"the wheels in {given.wheels} cannot be installed: {error}")
    if added:
        print("added: " + ", ".join(added), flush=True)
    path = [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    set_allocator(environment)
    comfy = given.wheels / "ComfyUI"
    if comfy.is_dir():
        environment.setdefault("COMFYUI_PATH", str(comfy.resolve()))
    campaign = Campaign(
        given.output.resolve(), started + given.budget, given.size, given.device, environment
    )
    refused = campaign.describe(carried_commit(given.wheels))
    if refused:
        return _refuse(refused)
    parts = given.part or PARTS
    for part in parts:
        getattr(campaign, part)()
    left = campaign.pending(parts)
    print(f"{left} cells and files of tests left; call it again." if left else "Done.", flush=True)
    return 0


def _refuse(found: str) -> int:
    print(
        f"Found: {found}\n"
        "Expected: a CUDA GPU, torch for it, and the packages of pyproject.toml here or as wheels\n"
        "To do: run make gpu-wheels where there is a package index, with GPU_PYTHON as the version "
        "of Python here, and carry build/gpu_wheels along.",
        file=sys.stderr,
    )
    return 2


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=480, help="seconds")
    parser.add_argument("--part", choices=PARTS, action="append", help="all, if left out")
    parser.add_argument("--earlier", type=Path, help="the output folder of an earlier call")
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
