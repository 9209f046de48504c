"""The tables of docs/tables/learning.md."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from .learning import BLOCKS, KINDS, OTHERS, PACED
from .measuring.own_concepts import CONCEPTS
from .measuring.record import RESULTS, read_record
from .products_to_learn import NEITHER, PLAIN, WAYS

Row = Mapping[str, Any]

SHARES = ("seen", "unseen", "kept")
_NOT_REACHED = "never"
_PACED = tuple(way.name for way in PACED)
_GROUPS = tuple(OTHERS)


def default_table() -> str:
    """What runs with default settings learn and keep, by concept and kind."""
    record = read_record(RESULTS / "learning.json")
    base = [row for row in record["rows"] if row["group"] == "base"]
    found = [row for row in record["rows"] if row["group"] == "default"]
    earlier = [row for row in record["rows"] if row["group"] == "earlier"]
    ways = [way for way in KINDS if any(row["way"] == way for row in found)]
    rows = [("the base alone", "all", *_cells(base), "-")]
    for way in ways:
        own = [row for row in found if row["way"] == way]
        before = [row for row in earlier if row["way"] == way]
        rows.append((way, "**all**", *_cells(own), "-"))
        rows += [
            (way, concept, *_cells(_of(own, concept)), _means(_of(before, concept)))
            for concept in CONCEPTS
        ]
    bars = ", ".join(f"{name} {bar:.0%}" for name, bar in record["bars"].items())
    heads = ("Kind", "Concept", *(name.capitalize() for name in SHARES), "Runs", "Before")
    return f"{_table(heads, rows)}\n\nBars: {bars}. {_origins(record)}"


def pace_table() -> str:
    """When 80 % of the seen combinations are right, beside a plain loop."""
    record = read_record(RESULTS / "learning.json")
    found = sorted((row for row in record["rows"] if "reached" in row), key=lambda r: r["seed"])
    rows = []
    for concept, way in sorted({(row["concept"], row["way"]) for row in found}, key=_in_order):
        of_way = [row for row in found if (row["concept"], row["way"]) == (concept, way)]
        reached = [row["reached"] for row in of_way]
        rows.append(
            (
                concept,
                way,
                ", ".join(_NOT_REACHED if r is None else str(r["step"]) for r in reached),
                ", ".join(
                    _NOT_REACHED if r is None else f"{r['cpu_seconds']:.1f}" for r in reached
                ),
                ", ".join(f"{row['cpu_seconds'] / row['steps']:.3f}" for row in of_way),
                ", ".join(f"{row['kept']:.0%}" for row in of_way),
                ", ".join(str(row["seed"]) for row in of_way),
            )
        )
    heads = (
        "Concept",
        "",
        "Steps to 80 %",
        "CPU seconds to 80 %",
        "CPU seconds a step",
        "Kept",
        "Seeds",
    )
    return f"{_table(heads, rows)}\n\n{_origins(record)}"


def change_table() -> str:
    """What one changed setting makes of a LoRA."""
    record = read_record(RESULTS / "learning.json")
    others = [row for row in record["rows"] if row["group"] in OTHERS]
    places = dict.fromkeys((row["group"], row["way"]) for row in others)
    rows = []
    for group, way in sorted(places, key=lambda place: _GROUPS.index(place[0])):
        of_way = [row for row in others if (row["group"], row["way"]) == (group, way)]
        rows.append((group, way, *_rate(of_way), *_cells(of_way)))
    heads = ("Changed", "To", "Rate", *(name.capitalize() for name in SHARES), "Runs")
    return f"{_table(heads, rows)}\n\n{_origins(record)}"


def block_table() -> str:
    """What a LoRA in a part of the blocks learns, over four concepts."""
    record = read_record(RESULTS / "learning.json")
    found = [row for row in record["rows"] if row["group"] == "blocks"]
    rows = [(way.name, *_cells([row for row in found if row["way"] == way.name])) for way in BLOCKS]
    heads = ("Adapted", *(name.capitalize() for name in SHARES), "Runs")
    return f"{_table(heads, rows)}\n\n{_origins({**record, 'rows': found})}"


def products_table() -> str:
    """How many products 80 % of the seen combinations take, beside those of a plain loop."""
    record = read_record(RESULTS / "products_to_learn.json")
    products, found = record["products"], record["rows"]
    plain = {_example(row): row for row in found if row["way"] == PLAIN}
    alone = {(row["kind"], _example(row)): row for row in found if row["way"] == NEITHER}
    plain_step = products[f"{PLAIN}, {KINDS[0]}"]
    rows = []
    for kind, way in itertools.product(KINDS, WAYS):
        own = [row for row in found if (row["kind"], row["way"]) == (kind, way)]
        if not own:
            continue
        step = products[f"{way}, {kind}"]
        losses = [_last_loss(row) / _last_loss(alone[kind, _example(row)]) for row in own]
        rows.append(
            (
                kind,
                way,
                f"{step / 1e9:.2f}",
                _steps_to_learn(own),
                _over_plain(own, plain, step / plain_step),
                *_cells(own)[1:],
                f"{geometric_mean(losses):.2f}",
            )
        )
    heads = (
        *("Kind", "", "GFLOP a step", "Steps to 80 % seen", "Products, of the plain loop's"),
        *("Unseen", "Kept", "Runs", "Loss"),
    )
    return f"{_table(heads, rows)}\n\n{_origins(record)}"


def _example(row: Row) -> tuple[str, int]:
    """What a run is shown."""
    return row["concept"], row["seed"]


def _steps_to_learn(rows: Sequence[Row]) -> str:
    """The median, the least and the most; a run that did not get there took more than it had."""
    steps = sorted((row["reached"] or _length(row), row["reached"] is None) for row in rows)
    words = [f"> {count}" if short else str(count) for count, short in steps]
    return f"{words[(len(words) - 1) // 2]} ({words[0]} to {words[-1]})"


def _over_plain(
    rows: Sequence[Row], plain: Mapping[tuple[str, int], Row], step_ratio: float
) -> str:
    """The mean of the products of a run over those of the plain one with the same images.

    A run that did not get there took more steps than it had: the mean is a bound then, or nothing
    where such runs are on both sides.
    """
    pairs = [(row, plain[_example(row)]) for row in rows]
    steps = [tuple(each["reached"] or _length(each) for each in pair) for pair in pairs]
    mean = f"{geometric_mean(own / other for own, other in steps) * step_ratio:.2f}"
    if rows[0]["way"] == PLAIN:
        return mean
    above = any(own["reached"] is None for own, _ in pairs)
    below = any(other["reached"] is None for _, other in pairs)
    if above and below:
        return "-"
    return f"> {mean}" if above else f"< {mean}" if below else mean


def _length(row: Row) -> int:
    return row.get("steps", max(map(int, row["loss"])))


def _last_loss(row: Row) -> float:
    return row["loss"][max(row["loss"], key=int)]


def _in_order(place: tuple[str, str]) -> tuple[str, int]:
    return place[0], _PACED.index(place[1])


def _rate(rows: Sequence[Row]) -> tuple[str]:
    return (", ".join(dict.fromkeys(f"{row['learning_rate']:g}" for row in rows)),)


def _cells(rows: Sequence[Row]) -> list[str]:
    """Mean share and the least and most of single runs; how many runs there are."""
    if not rows:
        return ["-"] * len(SHARES) + ["0"]
    cells = []
    for name in SHARES:
        shares = [row[name] for row in rows]
        mean, spread = f"{sum(shares) / len(shares):.0%}", f"{min(shares):.0%} to {max(shares):.0%}"
        cells.append(f"{mean} ({spread})" if len(shares) > 1 else mean)
    return [*cells, str(len(rows))]


def _of(rows: Sequence[Row], concept: str) -> list[Row]:
    return [row for row in rows if row["concept"] == concept]


def _means(rows: Sequence[Row]) -> str:
    """The mean shares alone."""
    if not rows:
        return "-"
    return ", ".join(f"{sum(row[name] for row in rows) / len(rows):.0%}" for name in SHARES)


def _origins(record: Row) -> str:
    """The commits and the machine that the rows were measured with."""
    used = sorted({row["session"] for row in record["rows"]})
    sessions = [record["sessions"][number] for number in used]
    commits = ", ".join(dict.fromkeys(each["commit"][:10] for each in sessions))
    machines = ", ".join(
        dict.fromkeys(f"{e['machine']['processor']}, {e['threads']} thread" for e in sessions)
    )
    return f"Commit {commits}, {machines}."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
