"""Adapted layers beside the frozen layer and beside every peer that is here.

Run it as ``python -m benchmarks.layers``; docs/benchmarks.md says how to read what it prints.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .measuring.block import block_names, measure_block
from .measuring.fidelity import measure_fidelity
from .measuring.goals import BLOCK, FIDELITY, FROZEN, Row, judge
from .measuring.peers import peer_recipes
from .measuring.recipes import OURS, RANK, Recipe, our_recipes
from .measuring.record import origin, read_record, write_record
from .measuring.single_layer import Layer, measure_layer
from .measuring.tables import block_table, fidelity_table, layer_table, verdict_table
from .measuring.timing import MODES

NARROW, WIDE = (3072, 3072), (3072, 12288)
DTYPES = {"cpu": (torch.bfloat16, torch.float32), "cuda": (torch.bfloat16,)}
ROUNDS = {"cpu": 3, "cuda": 20}
ONLY_WHEN_NAMED = ("layer 3072->12288 fp32 cpu",)
"""Takes minutes; measured when ``--only`` is given and finds it."""


TIMES = {"time", "times"}
"""The columns of rows that are times; all others are counters, which carry no noise."""


@dataclass(frozen=True)
class Section:
    """One table.

    Attributes:
        name: Its name.
        rows: What was measured.
        timed: Whether the rows have times.
        whole: Whether every row that belongs there was wanted.
        table: The table as text.
    """

    name: str
    rows: Sequence[Row]
    timed: bool
    whole: bool
    table: str


class Run:
    """One run of the benchmark.

    Args:
        device: ``cpu`` or ``cuda``.
        rounds: Timed rounds; 0 counts only.
        only: A regular expression; of ``section: row`` what it is found in is measured.
        modes: How layers are run; a device's others are left out.
    """

    def __init__(self, device: str, rounds: int, only: str, modes: Sequence[str]) -> None:
        self._device, self._rounds, self._only = device, rounds, re.compile(only)
        self._modes = modes
        peers, self.absent = peer_recipes()
        self._recipes = [*our_recipes(), *peers]

    def sections(self) -> Iterator[Section]:
        """Measure; yield each section as soon as it is there."""
        for dtype in DTYPES[self._device]:
            for inputs, outputs in (NARROW, WIDE):
                layer = Layer(inputs, outputs, dtype, self._device)
                if layer.name in ONLY_WHEN_NAMED and not self._only.pattern:
                    continue
                recipes = recipes_on(layer, self._recipes)
                if chosen := self._chosen(layer.name, recipes):
                    rows = measure_layer(layer, chosen, self._rounds, self._modes)
                    yield self._section(layer.name, rows, recipes, layer_table(layer.name, rows))
        if chosen := self._chosen(FIDELITY, self._recipes):
            gains = measure_fidelity(chosen, self._device)
            table = fidelity_table("gain and noise of small deltas", gains)
            yield self._section(FIDELITY, gains, self._recipes, table)
        names = [each for each in block_names() if self._wants(BLOCK, " ".join(each).strip())]
        if names:
            blocks = measure_block(names, self._rounds, self._device)
            table = block_table("step of a Qwen block, bf16", blocks)
            yield self._section(BLOCK, blocks, block_names(), table)

    def _section(
        self, name: str, rows: Sequence[Row], possible: Sequence[object], table: str
    ) -> Section:
        measured = [row for row in rows if row.name != FROZEN]
        timed = self._rounds > 0 and name != FIDELITY
        return Section(name, rows, timed, len(measured) == len(possible), table)

    def _chosen(self, section: str, recipes: Sequence[Recipe]) -> list[Recipe]:
        return [each for each in recipes if self._wants(section, each.name)]

    def _wants(self, section: str, row: str) -> bool:
        return bool(self._only.search(f"{section}: {row}"))


def recipes_on(layer: Layer, recipes: Sequence[Recipe]) -> list[Recipe]:
    """What is measured on a layer.

    Peers that build the weight again are slow, and no goal speaks of them: the narrow layer in bf16
    shows them, the others leave them out. In float32 the goals are beside the frozen layer.
    """
    if layer.dtype == torch.float32:
        return [each for each in recipes if each.source == OURS]
    if (layer.inputs, layer.outputs) == NARROW:
        return list(recipes)
    return [each for each in recipes if each.source == OURS or each.form != "rebuild"]


def main() -> None:
    """Measure, print the tables and the verdicts, and write them as JSON."""
    arguments = _parse()
    torch.set_num_threads(1)
    # Peers say the same about a layer once for each of hundreds that are built.
    logging.disable(logging.WARNING)
    rounds = ROUNDS[arguments.device] if arguments.rounds is None else arguments.rounds
    found = origin(arguments.device)
    modes = arguments.modes.split(",") if arguments.modes else MODES[arguments.device]
    run = Run(arguments.device, rounds, arguments.only, modes)
    for peer, reason in run.absent.items():
        print(f"{peer}: skipped, {reason}")
    sections: dict[str, Sequence[Row]] = {}
    record = read_record(arguments.output) if arguments.output else {}
    record |= {"benchmark": "layers", "rank": RANK}
    for section in run.sections():
        sections[section.name] = section.rows
        print(f"\n{section.table}", flush=True)
        if arguments.output and not section.whole:
            print("Not written: only whole sections are, and of this one rows were left out.")
        elif arguments.output:
            merge_section(record, section, {**found, "rounds": rounds, "skipped": run.absent})
            write_record(arguments.output, record)
    print("\n" + verdict_table("goals", judge(sections)))


def merge_section(record: dict[str, Any], section: Section, origin: dict[str, Any]) -> None:
    """Put a section into a record; without timed rounds the times that stand there stay.

    Args:
        record: A file of figures; changed in place.
        section: What was measured.
        origin: Where, and of which commit.
    """
    sections = record.setdefault("sections", {})
    before = sections.get(section.name, {})
    rows = [asdict(row) for row in section.rows]
    if not section.timed:
        old = {row["name"]: row for row in before.get("rows", [])}
        for row in rows:
            times = {key: old[row["name"]][key] for key in TIMES & old.get(row["name"], {}).keys()}
            row.update(times)
    timed = origin if section.timed else before.get("timed")
    sections[section.name] = {"counted": origin, "timed": timed, "rows": rows}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Adapted layers beside frozen ones and peers.")
    parser.add_argument("--output", type=Path, help="write everything to this JSON file as well")
    parser.add_argument("--device", choices=sorted(DTYPES), default="cpu")
    parser.add_argument("--rounds", type=int, help=f"timed rounds, 0 counts only; {ROUNDS}")
    parser.add_argument(
        "--only", default="", help="regular expression on 'section: row', as 'bf16 .*: ours lora'"
    )
    parser.add_argument("--modes", help=f"with commas between, beginning with eager; all: {MODES}")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here")
    if arguments.rounds is not None and arguments.rounds < 0:
        parser.error(f"--rounds {arguments.rounds}: 0 or more")
    return arguments


if __name__ == "__main__":
    main()
