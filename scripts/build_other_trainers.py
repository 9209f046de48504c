"""Writes the tables of docs/tables/other-trainers.md from the rules that read the files.

Usage: python -m scripts.build_other_trainers
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer_core.foreign_runs.registry import PROGRAMS
from trainer_core.foreign_runs.rules import Lacks, Maps, Rule

PAGE = Path(__file__).parents[1] / "docs" / "tables" / "other-trainers.md"
MARK = "<!-- The tables below are written by scripts/build_other_trainers.py. -->\n"


def tables() -> str:
    """Every key of every program, with what becomes of it."""
    return MARK + "\n".join(_lines())


def _lines() -> Iterator[str]:
    for program in PROGRAMS:
        yield f"\n## {program.name}\n\nRead from its source at commit `{program.version}`."
        for place, table in program.tables.items():
            if " if " in place:
                continue  # Its keys stand in the table of the place, too.
            title = f"`{place}`" if place else "All keys"
            yield f"\n### {program.name}: {title}\n\n| key | here | |\n|---|---|---|"
            rows: dict[tuple[str, str], list[str]] = {}
            for key, rule in sorted(table.items()):
                rows.setdefault(_cells(rule), []).append(f"`{key}`")
            for (here, why), keys in rows.items():
                yield f"| {', '.join(keys)} | {here} | {why} |"
    yield ""


def _cells(rule: Rule) -> tuple[str, str]:
    if isinstance(rule, Maps):
        return f"`{rule.setting}`", rule.near
    if isinstance(rule, Lacks):
        return "-", rule.why
    return f"with others: {rule.says}", ""


if __name__ == "__main__":
    intro = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(intro + tables(), encoding="utf-8")
