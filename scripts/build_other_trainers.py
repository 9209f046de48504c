"""Writes the tables of docs/tables/other-trainers.md from the rules that read the files.

Usage: python -m scripts.build_other_trainers
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer_core.foreign_runs.conversion import (
    ALWAYS,
    ALWAYS_IN_WORDS,
    Cases,
    Maps,
    NoCounterpart,
    Row,
    Table,
    Together,
)
from trainer_core.foreign_runs.registry import PROGRAMS

PAGE = Path(__file__).parents[1] / "docs" / "tables" / "other-trainers.md"
MARK = "<!-- The tables below are written by scripts/build_other_trainers.py. -->\n"


def tables() -> str:
    """Every key of every program, with what becomes of it."""
    return MARK + "\n".join(_lines())


def _lines() -> Iterator[str]:
    for program in PROGRAMS:
        yield f"\n## {program.name}\n\nRead from its source at commit `{program.version}`."
        for place, table in program.tables.items():
            title = f"`{place}`" if place else "All keys"
            yield f"\n### {program.name}: {title}\n\n| key | here | |\n|---|---|---|"
            rows: dict[tuple[str, str], list[str]] = {}
            for key, cells in sorted(_keys(table).items()):
                words = ALWAYS_IN_WORDS if key == ALWAYS else f"`{key}`"
                rows.setdefault(cells, []).append(words)
            for (here, why), keys in rows.items():
                yield f"| {', '.join(keys)} | {here} | {why} |"
    yield ""


def _keys(table: Table) -> dict[str, tuple[str, str]]:
    """What becomes of each key, by all of its rows."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row in table.rows:
        for key in row.keys:
            here, why = found.setdefault(key, ({}, {}))
            settings, reasons = _says(row)
            here |= dict.fromkeys(settings)
            why |= dict.fromkeys(reasons)
    return {
        key: (", ".join(here) or "-", " / ".join(filter(None, why)))
        for key, (here, why) in found.items()
    }


def _says(row: Row) -> tuple[list[str], list[str]]:
    """The settings of a row, and what differs."""
    if isinstance(row, Maps):
        return [f"`{row.setting}`"], [row.near]
    if isinstance(row, NoCounterpart):
        return [], [row.why]
    if isinstance(row, Together):
        return [f"with others: {row.says}"], []
    assert isinstance(row, Cases)
    settings = [f"`{name}`" for case in row.cases for name, _ in case.settings]
    return settings, [each for case in row.cases for each in (case.near, case.why)]


if __name__ == "__main__":
    intro = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(intro + tables(), encoding="utf-8")
