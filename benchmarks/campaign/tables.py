"""The tables that documents show of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measuring.record import RESULTS, read_record

from .cells import BASELINE

Row = Mapping[str, Any]

_SUMMARY = (f"flux 1024 {BASELINE}", "flux 1024 bf16, all swapped")

NOTHING = "Not measured yet: `make gpu` has not run on a GPU, or its results were not kept."
_GIB = 1 << 30


def campaign_table() -> str:
    """Every cell that was measured."""
    return table_of(read_record(RESULTS / "gpu_campaign.json"))


def summary() -> str:
    """For README: a base resident, and with all blocks swapped."""
    record = read_record(RESULTS / "gpu_campaign.json")
    rows = [
        (
            row["device"],
            f"FLUX.1, 1024 px, rank 16, {row['way']}",
            _number(row.get("seconds")),
            _gib(row["peak_bytes"]),
        )
        for row in record.get("rows", ())
        if row["cell"] in _SUMMARY and "peak_bytes" in row
    ]
    return _table(("GPU", "Base", "s/step", "Peak VRAM, GiB"), rows) if rows else NOTHING


def traces_table() -> str:
    """What one step launches, what the device does meanwhile, and what was predicted of both."""
    record = read_record(RESULTS / "gpu_campaign.json")
    planned = {row["cell"]: row for row in record.get("rows", ())}
    rows = []
    for each in record.get("traces", ()):
        plan = planned.get(each["cell"], {})
        parts, seconds = plan.get("plan_parts", {}), each["seconds"]
        launched = f"{each['launches']:,}"
        if "plan_launches" in plan:
            launched += f" ({plan['plan_launches']:,})"
        kinds = (_beside(seconds[kind], parts.get(kind)) for kind in _KINDS)
        rows.append((each["cell"], launched, str(each["waits"]), *kinds))
    heads = ("Step", "Launches", "Waits", *(kind.capitalize() for kind in _KINDS))
    return _table(heads, rows) if rows else NOTHING


_KINDS = ("attention", "products", "copies", "rest")


def _beside(value: float, predicted: float | None) -> str:
    return f"{value:.3f}" if predicted is None else f"{value:.3f} ({predicted:.3f})"


def goals_table() -> str:
    """What was to be reached."""
    record = read_record(RESULTS / "gpu_campaign.json")
    if not record:
        return NOTHING
    rows = [
        (each["goal"], f"{each['limit']:g}", _number(each["measured"]), _WORDS[each["met"]])
        for each in record["goals"]
    ]
    return _table(("Goal", "At most", "Measured", ""), rows)


_WORDS = {True: "met", False: "not met", None: "not measured"}


def table_of(record: Row) -> str:
    """The table of a file of figures."""
    if not record:
        return NOTHING
    rows = [
        (
            row["family"],
            f"{row['pixels']} px",
            row["way"],
            _number(row.get("seconds")) if row["status"] == "measured" else row["status"],
            _number(row.get("plan_seconds")),
            _number(row.get("ratio")),
            _number(row.get("load_seconds")),
            _gib(row.get("peak_bytes")),
            _gib(row.get("plan_bytes")),
            _gib(row.get("ram_bytes")),
        )
        for row in record["rows"]
        if row["status"] != "refused"
    ]
    heads = ("Base", "Images", "Way", "s/step", "Predicted", "Over bf16", "Start, s")
    heads += ("Peak VRAM", "Planned", "Host RAM")
    said = "; ".join(dict.fromkeys(map(_origin, record["calls"].values())))
    return _table(heads, rows) + f"\n\nBytes in GiB. {said}."


def _origin(origin: Row) -> str:
    versions = origin["versions"]
    name = origin["machine"]["device"]
    return f"Commit {origin['commit'][:10]}, {name}, torch {versions['torch']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{max(0, value) / _GIB:.1f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    assert all(len(row) == len(heads) for row in rows)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
