"""Adapted layers beside the frozen layer and beside every peer that is here.

Run it as ``python -m benchmarks.layers``; docs/benchmarks.md says how to read what it prints.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer_core.training.versions import installed_versions

from .measuring.block import block_names, measure_block
from .measuring.fidelity import measure_fidelity
from .measuring.goals import BLOCK, FIDELITY, Row, judge
from .measuring.peers import FLOAT32, peer_recipes
from .measuring.recipes import RANK, Recipe, our_recipes
from .measuring.single_layer import TOKENS, Layer, measure_layer
from .measuring.tables import block_table, fidelity_table, layer_table, verdict_table

WIDTHS = ((3072, 3072), (3072, 12288))
DTYPES = {"cpu": (torch.bfloat16, torch.float32), "cuda": (torch.bfloat16,)}
ROUNDS = {"cpu": 5, "cuda": 20}


class Run:
    """One run of the benchmark.

    Args:
        device: ``cpu`` or ``cuda``.
        rounds: Timed rounds; 0 counts only.
        only: A regular expression; of ``section: row`` what it is found in is measured.
    """

    def __init__(self, device: str, rounds: int, only: str) -> None:
        self._device, self._rounds, self._only = device, rounds, re.compile(only)
        peers, self.absent = peer_recipes()
        self._recipes = [*our_recipes(), *peers]

    def sections(self) -> Iterator[tuple[str, Sequence[Row], str]]:
        """Measure; yield each section's name, rows and table as soon as they are there."""
        for dtype in DTYPES[self._device]:
            for inputs, outputs in WIDTHS:
                layer = Layer(inputs, outputs, dtype, self._device)
                chosen = self._chosen(layer.name)
                if dtype == torch.float32:
                    chosen = [each for each in chosen if each.form != FLOAT32]
                if chosen:
                    rows = measure_layer(layer, chosen, self._rounds)
                    yield layer.name, rows, layer_table(layer.name, rows)
        if chosen := self._chosen(FIDELITY):
            gains = measure_fidelity(chosen, self._device)
            yield FIDELITY, gains, fidelity_table("gain and noise of small deltas", gains)
        names = [each for each in block_names() if self._wants(BLOCK, " ".join(each).strip())]
        if names:
            blocks = measure_block(names, self._rounds, self._device)
            yield BLOCK, blocks, block_table("step of a Qwen block, bf16", blocks)

    def _chosen(self, section: str) -> list[Recipe]:
        return [each for each in self._recipes if self._wants(section, each.name)]

    def _wants(self, section: str, row: str) -> bool:
        return bool(self._only.search(f"{section}: {row}"))


def main() -> None:
    """Measure, print the tables and the verdicts, and write them as JSON."""
    arguments = _parse()
    torch.set_num_threads(1)
    # Peers say the same about a layer once for each of hundreds that are built.
    logging.disable(logging.WARNING)
    rounds = ROUNDS[arguments.device] if arguments.rounds is None else arguments.rounds
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    run = Run(arguments.device, rounds, arguments.only)
    for peer, reason in run.absent.items():
        print(f"{peer}: skipped, {reason}")
    sections: dict[str, Sequence[Row]] = {}
    for name, rows, table in run.sections():
        sections[name] = rows
        print(f"\n{table}", flush=True)
    verdicts = judge(sections)
    print("\n" + verdict_table("goals", verdicts))
    if arguments.output:
        result: dict[str, Any] = {
            "benchmark": "layers",
            "device": _device_name(arguments.device),
            "rounds": rounds,
            "threads": 1,
            "tokens": TOKENS[arguments.device],
            "rank": RANK,
            "load_average_before": load,
            "versions": installed_versions(),
            "skipped": run.absent,
            "sections": {name: [asdict(row) for row in rows] for name, rows in sections.items()},
            "goals": [asdict(verdict) for verdict in verdicts],
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Adapted layers beside frozen ones and peers.")
    parser.add_argument("--output", type=Path, help="write everything to this JSON file as well")
    parser.add_argument("--device", choices=sorted(DTYPES), default="cpu")
    parser.add_argument("--rounds", type=int, help=f"timed rounds, 0 counts only; {ROUNDS}")
    parser.add_argument(
        "--only", default="", help="regular expression on 'section: row', as 'bf16 .*: ours lora'"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here")
    if arguments.rounds is not None and arguments.rounds < 0:
        parser.error(f"--rounds {arguments.rounds}: 0 or more")
    return arguments


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"cpu {platform.machine()}"


if __name__ == "__main__":
    main()
