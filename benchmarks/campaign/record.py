"""Makes the committed figures of a campaign's results: ``python -m benchmarks.campaign.record``.

It runs where there is time, on a CPU: what each cell was planned to take is simulated here.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring.record import RESULTS, read_record, write_record
from benchmarks.measuring.step_sizes import step_sizes
from benchmarks.memory_plans import ROOM
from trainer_core.config import MemorySection, RunConfig
from trainer_core.families.registry import get_family
from trainer_core.offload.choose_plan import rank_plans
from trainer_core.offload.empty_base import empty_base
from trainer_core.offload.machine import ATTENTION, LAUNCH_SECONDS, MOVED, PRODUCTS
from trainer_core.offload.possible_plans import Budget, MemoryPlan, StepSizes, step_seconds
from trainer_core.offload.step_profile import Work
from trainer_core.quantization.formats import FORMATS
from trainer_core.training.memory.short_base import StepInputs
from trainer_core.training.memory.step_simulation import StepSimulation

from .cells import BASELINE, START
from .lines import read_lines
from .random_base import SIZES, random_location

Row = dict[str, Any]

_KEPT = ("cell", "family", "pixels", "way", "device", "status", "seconds", "error", "note")
_BYTES = ("peak_bytes", "reserved_bytes", "used_bytes", "pinned_bytes")

GOALS = (("int8, 8bit, compile", 1024, BASELINE, 0.6),)
"""Way, pixels, the way that it is compared with, and the most that the ratio may be."""

OVER_PREDICTED = 1.10
"""What a step with swapped blocks may take beside what link and resident step of the machine give:
a GPU that computes faster than the link brings weights waits for it, however well they overlap."""

_UNMEASURED = {
    "attention_per_s": 315e12,
    "moved_per_s": 4.2e12,
    "converted_per_s": 4.2e12 * MOVED / 3,
}
"""Of calls before these were measured, all on an H200: its attention's forward pass in a trace,
0.88 of the 4.8 TB/s that it is sold with, and what such kernels reached in a traced step with
`compute: 8bit`."""

_SIMULATED = ("device", "gradient_checkpointing", "compile", "compute")
"""Memory settings that a simulated step depends on; it is the same wherever blocks lie."""

_ALL = 1 << 20

PEAK_SHARE = 0.08
"""How far a peak may be from the plan."""


def figures(folder: Path, simulate: bool = True) -> Row:
    """What goes into ``benchmarks/results/gpu_campaign.json``.

    Args:
        folder: The output of the campaign.
        simulate: Also say what each cell was planned to take.
    """
    lines = read_lines(folder)
    calls = {line["call"]: line["origin"] for line in lines if line["part"] == "machine"}
    measured = [line for line in lines if line["part"] == "bases"]
    best = {line["cell"]: line for line in sorted(measured, key=_worth)}
    machines = {call: origin["machine"] for call, origin in calls.items()}
    rows = [_row(line, measured, folder, simulate, machines) for line in best.values()]
    left = [line["left_bytes"] for line in lines if line["part"] == "memory"]
    tests = [line for line in lines if line["part"] == "tests"]
    return {
        "benchmark": "gpu_campaign",
        "calls": calls,
        "tests": [{k: v for k, v in each.items() if k != "part"} for each in tests],
        "rows": rows,
        "traces": [_trace(each) for each in lines if each["part"] == "trace" and "kernels" in each],
        "goals": _goals(rows, left),
    }


_KINDS = (
    ("attention", ("flash", "attention", "fmha")),
    ("products", ("gemm", "nvjet", "cutlass", "cublas")),
    ("copies", ("Memcpy",)),
)
"""What a kernel is, by words of its name; the first that fits."""


def _trace(line: Row) -> Row:
    """Seconds on the device by what the kernels do; those that a trace does not name are `rest`."""
    found = dict.fromkeys((*(kind for kind, _ in _KINDS), "rest"), 0.0)
    for kernel in line["kernels"]:
        fits = (kind for kind, words in _KINDS if any(word in kernel["name"] for word in words))
        found[next(fits, "rest")] += kernel["ms"] / 1e3
    found["rest"] += line["device_seconds"] - sum(found.values())
    kept = {key: line[key] for key in ("cell", "launches", "waits", "wait_places", "kernels")}
    return kept | {"seconds": {kind: round(each, 4) for kind, each in found.items()}}


def _worth(line: Row) -> tuple[bool, str]:
    """The last measurement of a cell counts, or else the last of its failures."""
    return line["status"] == "measured", line["call"]


def _row(
    line: Row, measured: Sequence[Row], folder: Path, simulate: bool, machines: Mapping[str, Row]
) -> Row:
    row: Row = {key: line[key] for key in _KEPT if key in line}
    row |= {key: line[key] for key in _BYTES if key in line}
    if line["status"] != "measured":
        return row
    row["ram_bytes"] = line["ram_bytes"] - line["ram_before"]
    row["load_seconds"] = line["load_seconds"]
    if line["way"].startswith(START):
        return row
    base = f"{line['family']} {line['pixels']} {BASELINE}"
    row["ratio"] = _ratio(line, base, measured)
    machine = machines.get(line["call"], {})
    row["predicted_seconds"] = _predicted(line, measured, machine.get("link_bytes_per_s"))
    return row | (plan_figures(line, folder, machine) if simulate else {})


def plan_figures(line: Row, folder: Path, machine: Row) -> Row:
    """What a cell was planned to take: bytes, seconds, and where these go.

    Args:
        machine: What measured it, as `benchmarks.campaign.machine` says.
    """
    found = planned(line, folder, budget_of(machine))
    if found is None:
        return {}
    plan, work = found
    budget = budget_of(machine)
    row: Row = {"plan_bytes": plan.device, "plan_ram_bytes": plan.ram}
    if "bf16_flops_per_s" not in machine:
        return row
    parts = {
        "attention": budget.seconds(Work(attention=work.attention)),
        "products": budget.seconds(Work(work.flops)),
        "copies": plan.transfer,
        "rest": budget.seconds(Work(moved=work.moved, converted=work.converted)),
    }
    shown = {name: round(each, 4) for name, each in parts.items()}
    return row | {
        "plan_seconds": round(plan.seconds, 4),
        "plan_parts": shown,
        "plan_launches": work.launches,
    }


def budget_of(machine: Row) -> Budget:
    """Room for every plan, at a machine's speeds."""
    if "bf16_flops_per_s" not in machine:
        return ROOM
    known = {**_UNMEASURED, **machine}
    return replace(
        ROOM,
        link_bytes_per_s=known["link_bytes_per_s"],
        flops_per_s=known["bf16_flops_per_s"] * PRODUCTS,
        attention_per_s=known["attention_per_s"] * ATTENTION,
        moved_per_s=known["moved_per_s"] * MOVED,
        launch_seconds=LAUNCH_SECONDS,
        converted_per_s=known["converted_per_s"],
    )


def _predicted(line: Row, measured: Sequence[Row], link: float | None) -> float | None:
    """Seconds of a step with swapped blocks, as the planner predicts it of this machine."""
    memory, sent = line.get("memory", {}), line.get("sent_bytes", 0)
    resident = _resident(line, measured)
    if not sent or not resident or not link:
        return None
    transfer = sent / link
    return round(step_seconds(resident["seconds"], transfer, memory.get("swap_slots", 2)), 4)


def _resident(line: Row, measured: Sequence[Row]) -> Row | None:
    """The same base in the same format and call, with no block away."""
    way = line["way"].split(",")[0]
    name = f"{line['family']} {line['pixels']} {way}"
    found = [each for each in measured if (each["cell"], each["call"]) == (name, line["call"])]
    return next((each for each in found if "seconds" in each), None)


def _ratio(line: Row, base: str, measured: Sequence[Row]) -> float | None:
    """A cell's time over another's of the same call, or else of the same kind of GPU."""
    found = [each for each in measured if each["cell"] == base and "seconds" in each]
    here = [each for each in found if each["call"] == line["call"]]
    alike = [each for each in found if each["device"] == line["device"]]
    chosen = (here or alike)[-1:] if "seconds" in line else []
    return round(line["seconds"] / chosen[0]["seconds"], 3) if chosen else None


def planned(line: Row, folder: Path, budget: Budget) -> tuple[MemoryPlan, Work] | None:
    """How a cell was planned, and what it computes; None where the run planned for itself.

    Args:
        line: The cell's result.
        folder: Where the settings of a tiny base lie.
    """
    memory = line["settings"]["memory"]
    if memory["plan"] != "off":
        return None
    kept = memory.get("base_format", "dense")
    settings = {key: line["settings"][key] for key in ("family", "adapter", "training", "memory")}
    settings["memory"] = {key: value for key, value in memory.items() if key in _SIMULATED}
    sizes = _sizes(line["size"], line["pixels"], kept, json.dumps(settings), folder / "samples")
    # A planner that is free to choose, with all the room there is, would keep activations.
    usual = {"blocks_to_checkpoint": _ALL, "checkpoint_inputs": "device", "swap_slots": 2}
    names = (*usual, "blocks_to_swap", "gradient_checkpointing")
    chosen = {**usual, **{name: memory[name] for name in names if name in memory}}
    chosen |= {"base_format": kept, "blocks_to_swap": memory["blocks_to_swap"] or 0}
    wanted = MemorySection().model_copy(update=chosen)
    return rank_plans(sizes, wanted, budget)[0], sizes.formats[kept].activations.work


@functools.cache
def _sizes(size: str, pixels: int, kept: str, settings: str, folder: Path) -> StepSizes:
    config = RunConfig.model_validate_json(settings)
    family = get_family(config.family)
    location = random_location(family.name, size, folder)
    side = pixels // SIZES[size].divisor
    image = family.latent_shape(location, side, side)
    together = config.memory.device != "cpu"
    inputs = StepInputs((image,), location.text_length, torch.bfloat16, together)
    transformer = empty_base(location, family).transformer
    simulation = StepSimulation(transformer, family, config, inputs)
    formats = {kept: FORMATS[kept]} if kept in FORMATS else {}
    return step_sizes(simulation, formats)


def _goals(rows: Sequence[Row], left: Sequence[int]) -> list[Row]:
    found: list[Row] = []
    for way, pixels, against, limit in GOALS:
        for row in rows:
            if (row["way"], row["pixels"]) == (way, pixels):
                goal = f"{row['cell']}, time over {against}"
                found.append(_verdict(goal, limit, row.get("ratio")))
    for row in rows:
        if predicted := row.get("predicted_seconds"):
            goal = f"{row['cell']}, time over the predicted {predicted:.3g} s"
            found.append(_verdict(goal, OVER_PREDICTED, row["seconds"] / predicted))
    off = [
        abs(row["peak_bytes"] / row["plan_bytes"] - 1)
        for row in rows
        if "plan_bytes" in row and "peak_bytes" in row
    ]
    found.append(_verdict("peak beside the plan, largest", PEAK_SHARE, max(off, default=None)))
    most = max(map(abs, left), default=None)
    found.append(_verdict("bytes of a GPU that are not given back", 0, most))
    return found


def _verdict(goal: str, limit: float, value: float | None) -> Row:
    return {
        "goal": goal,
        "limit": limit,
        "measured": value if value is None else round(value, 3),
        "met": None if value is None else value <= limit,
    }


def known_commit(content: Any, commit: str) -> Any:
    """Put a commit where a machine without git could say none."""
    if isinstance(content, Mapping):
        return {
            key: commit if (key, value) == ("commit", "unknown") else known_commit(value, commit)
            for key, value in content.items()
        }
    return (
        [known_commit(each, commit) for each in content] if isinstance(content, list) else content
    )


def main() -> None:
    """Write the committed files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the output folder of the campaign")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    content = figures(given.folder)
    write_record(given.output / "gpu_campaign.json", content)
    layers = read_record(given.folder / "layers_cuda.json")
    commits = [origin["commit"] for origin in content["calls"].values()]
    if layers and commits:
        write_record(given.output / "layers_cuda.json", known_commit(layers, commits[-1]))
    for each in content["goals"]:
        print(f"{each['goal']}: {each['measured']} <= {each['limit']}: {each['met']}")


if __name__ == "__main__":
    main()
