"""The tables as text."""

from __future__ import annotations

from collections.abc import Sequence

from .block import BlockRow
from .fidelity import FidelityRow
from .goals import Verdict
from .single_layer import LayerRow
from .timing import Ratio

_NAME = 34


def layer_table(title: str, rows: Sequence[LayerRow]) -> str:
    """One layer's table."""
    modes = list(rows[0].times)
    heads = [text for mode in modes for text in (mode, "best")]
    heads += ["saved/x", "written", "FLOPs", "ops", "peak MiB", "parameters"]
    lines = [_line(title, heads)]
    for row in rows:
        cells = [text for mode in modes for text in _times(row.times[mode])]
        cells += [f"{row.saved:.3f}", f"{row.written:.2f}", f"{row.flops:.3f}"]
        cells += [str(row.operations), f"{row.peak_mib:.1f}", str(row.parameters)]
        lines.append(_line(row.name, cells))
    return "\n".join(lines)


def fidelity_table(title: str, rows: Sequence[FidelityRow]) -> str:
    """The gains, each with its noise."""
    lines = [_line(title, [f"|d|/|y|={size}" for size in rows[0].gains], 16)]
    for row in rows:
        cells = [f"{gain:.2f} {row.noises[size]:6.2f}" for size, gain in row.gains.items()]
        lines.append(_line(row.name, cells, 16))
    return "\n".join(lines)


def block_table(title: str, rows: Sequence[BlockRow]) -> str:
    """The block's table."""
    heads = ["time", "best", "saved", "written", "FLOPs", "ops", "parameters"]
    lines = [_line(title, heads)]
    for row in rows:
        times = ["-", "-"] if row.time is None else _times(row.time)
        counters = [f"{row.saved:.2f}", f"{row.written:.3f}", f"{row.flops:.3f}"]
        counters += [str(row.operations), str(row.parameters)]
        lines.append(_line(row.name, [*times, *counters]))
    return "\n".join(lines)


def verdict_table(title: str, verdicts: Sequence[Verdict]) -> str:
    """The goals, with what was measured."""
    lines = [f"{title:{2 * _NAME}}{'goal':>9}{'measured':>11}  verdict"]
    for each in verdicts:
        goal = each.goal
        what = f"{goal.section}: {goal.group} {goal.form}".rstrip() + f", {goal.quantity}"
        sign = ">=" if goal.quantity.startswith("gain") else "<="
        measured = "-" if each.measured is None else f"{each.measured:.3f}"
        word = {True: "met", False: "NOT MET", None: "not measured"}[each.met]
        beside = f" (over {each.against})" if goal.quantity.startswith("time") else ""
        lines.append(f"{what:{2 * _NAME}}{sign:>4}{goal.limit:5.2f}{measured:>11}  {word}{beside}")
    return "\n".join(lines)


def _times(ratio: Ratio) -> list[str]:
    if ratio.failure:
        return ["failed", "-"]
    return [f"{ratio.median:.3f}", f"{ratio.best:.3f}"]


def _line(name: str, cells: Sequence[str], width: int = 11) -> str:
    return name.ljust(_NAME) + "".join(cell.rjust(width) for cell in cells)
