"""Measures cells of bases, in the real loop: ``python -m benchmarks.campaign.measure``.

The parent (`benchmarks.gpu_campaign`) starts it, and starts it again where a cell broke it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from trainer_core.config import RunConfig
from trainer_core.device import (
    borrowed_attention,
    borrowed_random_state,
    release_memory,
    resolve_precision,
)
from trainer_core.errors import ConfigError
from trainer_core.families.registry import get_family
from trainer_core.offload.machine import Machine
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import Prepared
from trainer_core.training.setup.load import Loaded, load
from trainer_core.training.setup.plan_memory import plan_memory
from trainer_core.training.setup.starting_point import Start
from trainer_core.training.step.processes import SingleProcess
from trainer_core.training.train_loaded import train_loaded

from .cells import Cell, groups, to_measure
from .lines import begin, end, write_line
from .random_base import SIZES, at_size, random_data
from .watch import TRACED, Stopwatch, TracedSteps

AGAIN = 75
"""Exit status: a cell failed, and this process may be no place for the next."""

WARM_UP, STEPS, LONGEST = 2, 5, 8.0
"""Steps before the timed ones, timed ones at most, and seconds after which no other is timed."""

_TRACEBACK = 4000


class ImitatedMachine(Machine):
    """Has no more VRAM than a smaller GPU, and counts what is pinned.

    Args:
        card: Bytes of VRAM; None for what there is.
        reserve: Bytes that plans leave free.
    """

    def __init__(self, card: int | None, reserve: int) -> None:
        self.card, self.reserve = card, reserve
        self.pinned = self.most = 0

    def plans_for(self, device: torch.device) -> bool:
        """Whether a run chooses its plan here: also on the CPU of a rehearsal."""
        return device.type == "cuda" or self.card is not None

    def free_memory(self, device: torch.device) -> int:
        """Free bytes; what torch is kept from using is not."""
        free = super().free_memory(device)
        if self.card is None:
            return free
        taken = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        return min(free, self.card - taken)

    def count_pinned(self, change: int) -> None:
        """Hear of it."""
        super().count_pinned(change)
        self.pinned += change
        self.most = max(self.most, self.pinned)


def run_settings(cell: Cell, device: str, blocks: int) -> dict[str, Any]:
    """A cell's run file.

    Args:
        cell: The cell.
        device: Where it runs.
        blocks: Of the base.
    """
    swapped = {"none": None, "half": blocks // 2, "all": blocks}[cell.way.swap]
    memory: dict[str, Any] = {"device": device, "blocks_to_swap": swapped, "plan": "off"}
    settings: dict[str, Any] = {
        "family": cell.family,
        "adapter": {"kind": "lora", "rank": 16},
        "memory": memory,
        "training": {"steps": 1000, "precision": "bf16", "optimizer": {"learning_rate": 1e-4}},
    }
    for section, values in cell.way.settings.items():
        settings[section] = {**settings.get(section, {}), **values}
    if settings["memory"].get("blocks_to_checkpoint") == "half":
        settings["memory"]["blocks_to_checkpoint"] = blocks // 2
    return settings


class Bench:
    """A device with a folder for what is measured on it.

    Args:
        folder: Takes results.
        size: Of the bases.
        device: ``cuda`` or, for a rehearsal, ``cpu``.
        call: Names this call in the results.
        samples: Takes bases and samples; in the folder, if left out.
    """

    def __init__(
        self, folder: Path, size: str, device: str, call: str, samples: Path | None = None
    ) -> None:
        self.folder, self.size, self.call = folder, size, call
        self.samples = samples or folder / "samples"
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.cuda = self.device.type == "cuda"

    def work(self, cells: Sequence[Cell], deadline: float) -> int:
        """Measure until all is done, the time is over, or something failed.

        Args:
            cells: In order.
            deadline: As `time.time` gives it.

        Returns:
            The exit status.
        """
        share = SIZES[self.size].time / 2
        for group in groups(cells):
            if time.time() + share * sum(each.seconds for each in group) > deadline:
                return 0
            if not self.measure(group):
                return AGAIN
        return 0

    def measure(self, group: Sequence[Cell]) -> bool:
        """Measure cells of one base, and write a line for each; whether the process may go on."""
        begin(self.folder, group[0].name)
        left = list(group)
        before = self._allocated()
        try:
            with (
                self._card(group[0].way.card),
                borrowed_random_state(self.device),
                borrowed_attention(),
            ):
                for row in self._rows(group):
                    self._write(left.pop(0), {"status": "measured", **row})
                    if left:
                        begin(self.folder, left[0].name)
        except ConfigError as error:
            # Such as a setting that this version does not have.
            for cell in left:
                self._write(cell, {"status": "refused", "error": error.found})
            left.clear()
        except Exception as error:  # noqa: BLE001 - whatever a cell dies of is its result
            out = "out of memory" in str(error).lower()
            row = {"status": "out of memory" if out else "failed", "error": _told(error)}
            row["traceback"] = traceback.format_exc()[-_TRACEBACK:]
            loaded = len(left) < len(group)
            for cell in left[:1] if out or loaded else left:
                self._write(cell, row)
        end(self.folder)
        release_memory(self.device)
        kept = self._allocated() - before
        write_line(
            self.folder,
            {"part": "memory", "call": self.call, "cell": group[0].name, "left_bytes": kept},
        )
        # The profiler slows every later launch of its process.
        return not left and not kept and not (self.cuda and group[0].way.traced)

    def _write(self, cell: Cell, row: Mapping[str, Any]) -> None:
        place = {"family": cell.family, "pixels": cell.pixels, "way": cell.way_name}
        write_line(
            self.folder,
            {"part": "bases", "call": self.call, "cell": cell.name, "size": self.size}
            | place
            | {"device": self._named(), **row},
        )

    def _rows(self, group: Sequence[Cell]) -> Iterator[dict[str, Any]]:
        first = group[0]
        data = random_data(first.family, self.size, first.pixels, self.samples)
        if first.way.from_file:
            data = dataclasses.replace(data, family=get_family(first.family))
        try:
            settings = run_settings(first, self.device.type, _blocks(data))
            config = RunConfig.model_validate(settings)
        except ValueError as error:
            raise ConfigError(_told(error), "a run file of this version", "") from error
        precision = resolve_precision(config.training.precision, self.device)
        card, started = first.way.card, time.perf_counter()
        gibibyte = SIZES[self.size].gibibyte
        machine = ImitatedMachine(None if card is None else card * gibibyte, gibibyte)
        heard, processes, start = SilentObserver(), SingleProcess(self.device), Start()
        ram = psutil.Process().memory_info().rss
        planned = plan_memory(config, data, precision, start, {}, processes, heard, machine).config
        with contextlib.ExitStack() as at_end, torch.enable_grad():
            run = load(
                planned,
                observer=heard,
                processes=processes,
                data=data,
                precision=precision,
                start=start,
                base="random",
                machine=machine,
                at_end=at_end,
                may_grow=config.memory.plan != "off",
            )
            self._wait()
            loaded = time.perf_counter() - started
            release_memory(self.device)
            for cell in group:
                other = random_data(cell.family, self.size, cell.pixels, self.samples)
                row = {} if cell.way.from_file else self._steps(run, at_size(data, other), config)
                yield row | {
                    "load_seconds": round(loaded, 2),
                    "ram_bytes": psutil.Process().memory_info().rss,
                    "ram_before": ram,
                    "pinned_bytes": machine.most,
                    "sent_bytes": run.placed.sent_bytes(run.placed.count),
                    "settings": settings,
                    "memory": planned.memory.model_dump(mode="json"),
                }
            if self.cuda and first.way.traced:
                self._write_trace(first, run, data, config)

    def _loop(self, run: Loaded, data: Prepared, config: RunConfig, watch: Any, steps: int) -> None:
        longer = run.state.step + steps
        train_loaded(dataclasses.replace(run, data=data, steps=longer, observer=watch), watch)

    def _write_trace(self, cell: Cell, run: Loaded, data: Prepared, config: RunConfig) -> None:
        """Make some more steps, and write down what they launched and where they waited."""
        watch = TracedSteps(self._wait)
        line = {"part": "trace", "call": self.call, "cell": cell.name, "size": self.size}
        try:
            self._loop(run, data, config, watch, TRACED)
        except Exception as error:  # noqa: BLE001 - the cells themselves are measured
            line["error"] = _told(error)
        finally:
            watch.close()
        write_line(self.folder, line | watch.found)

    def _steps(self, run: Loaded, data: Prepared, config: RunConfig) -> dict[str, Any]:
        """Make steps, and take their time and memory."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        watch = Stopwatch(self._wait, WARM_UP, LONGEST)
        self._loop(run, data, config, watch, WARM_UP + STEPS)
        row = {
            "seconds": statistics.median(watch.times),
            "times": watch.times,
            "losses": watch.losses,
        }
        if self.cuda:
            free, total = torch.cuda.mem_get_info(self.device)
            row |= {
                "peak_bytes": torch.cuda.max_memory_allocated(self.device),
                "reserved_bytes": torch.cuda.max_memory_reserved(self.device),
                "used_bytes": total - free,
            }
        return row

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def _allocated(self) -> int:
        """Bytes that tensors have on the device, without those of its libraries."""
        if not self.cuda:
            return 0
        self._wait()
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        return torch.cuda.memory_allocated(self.device)

    @contextlib.contextmanager
    def _card(self, gibibytes: int | None) -> Iterator[None]:
        """Let torch have no more than a smaller GPU has."""
        if not self.cuda or gibibytes is None:
            yield
            return
        release_memory(self.device)
        total = torch.cuda.get_device_properties(self.device).total_memory
        share = min(1.0, gibibytes * SIZES[self.size].gibibyte / total)
        torch.cuda.set_per_process_memory_fraction(share, self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def _named(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.cuda else "cpu"


def _blocks(data: Prepared) -> int:
    path = data.location.folder / "transformer" / "config.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    return facts["num_layers"] + facts.get("num_single_layers", 0)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:600]


def _end_with(parent: int) -> None:
    """End this process with the one that started it: nobody else would take the GPU from it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(AGAIN)


def main(words: Sequence[str] | None = None) -> int:
    """Measure the cells that the parent names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--call", required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--cells", required=True, help="names, as a JSON list")
    given = parser.parse_args(words)
    if words is None:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    wanted = json.loads(given.cells)
    known = {each.name: each for each in to_measure({}, "")}
    bench = Bench(given.output, given.size, given.device, given.call, given.samples)
    return bench.work([known[name] for name in wanted], given.deadline)


if __name__ == "__main__":
    raise SystemExit(main())
