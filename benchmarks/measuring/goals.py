"""What the adapters promise, as data, and whether a run kept it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .block import BlockRow
from .fidelity import FidelityRow
from .recipes import EXACT, OURS
from .single_layer import LayerRow
from .timing import MODES

Row = LayerRow | FidelityRow | BlockRow
BLOCK = "block"
FIDELITY = "fidelity"
BEST_PEER = "best peer"
FROZEN = "frozen"


@dataclass(frozen=True)
class Goal:
    """One promise.

    Attributes:
        section: The table that it is about.
        group: What is computed.
        quantity: A column: ``saved``, ``written``, ``flops``, ``time MODE`` or ``gain SIZE``.
        limit: At most this; for a gain at least.
        against: What a time is compared with: ``frozen``, a peer, or the best peer of the run.
        decimals: To which a counter is rounded before it is compared, as the goal is written.
        form: Which form of ours.
    """

    section: str
    group: str
    quantity: str
    limit: float
    against: str = FROZEN
    decimals: int | None = None
    form: str = ""


@dataclass(frozen=True)
class Verdict:
    """A goal and what was measured.

    Attributes:
        goal: The goal.
        measured: The number; None where something needed was not measured.
        against: What it was compared with, by name.
        met: None where it is not known.
    """

    goal: Goal
    measured: float | None
    against: str
    met: bool | None


_COUNTERS = {
    # saved / x, bytes written / frozen, FLOPs / frozen
    "lora": (1.01, 2.2, 1.02),
    "loha": (1.09, 3.6, 1.26),
    "lokr r16 f8": (1.0, 2.2, 1.02),
    "lokr r16 f-1": (1.0, 3.1, 1.03),
    "lokr full f8": (1.0, 3.7, 1.20),
    "dora output": (2.0, 4.3, 1.03),
}
_DECIMALS = {"lora": (2, 1, 2), "loha": (2, 1, 2)}
_BESIDE_PEERS = {
    "lora": (0.9, "PEFT"),
    "lokr r16 f8": (0.75, BEST_PEER),
    "lokr r16 f-1": (0.85, BEST_PEER),
    "lokr full f8": (0.85, BEST_PEER),
    "loha": (0.6, BEST_PEER),
    "dora output": (0.35, BEST_PEER),
}
_BESIDE_FROZEN_FP32 = {"lora": 1.10, "lokr full f8": 1.25, "loha": 1.35, "dora output": 1.15}
_ON_A_GPU = {
    "lora": 1.15,
    "lokr r16 f8": 1.35,
    "lokr r16 f-1": 1.35,
    "lokr full f8": 1.35,
    "loha": 1.35,
    "dora output": 1.30,
}
_BLOCK_LORA, _BLOCK_OTHERS = 1.12, 1.35
_GAINS = {"1e-03": 0.95, "1e-04": 0.90}
_SHAPES = ("3072->3072", "3072->12288")


def all_goals() -> list[Goal]:
    """Every goal of every section."""
    return [*_counter_goals(), *_time_goals(), *_gpu_goals(), *_block_goals(), *_gain_goals()]


def _counter_goals() -> list[Goal]:
    section = f"layer {_SHAPES[0]} bf16 cpu"
    goals = []
    for group, limits in _COUNTERS.items():
        decimals = _DECIMALS.get(group, (1, 1, 2))
        for quantity, limit, places in zip(
            ("saved", "written", "flops"), limits, decimals, strict=True
        ):
            goals.append(Goal(section, group, quantity, limit, decimals=places))
    return goals


def _time_goals() -> list[Goal]:
    goals = []
    for shape in _SHAPES:
        for group, (limit, against) in _BESIDE_PEERS.items():
            goals.append(Goal(f"layer {shape} bf16 cpu", group, "time eager", limit, against))
        for group, limit in _BESIDE_FROZEN_FP32.items():
            goals.append(Goal(f"layer {shape} fp32 cpu", group, "time eager", limit))
    return goals


def _gpu_goals() -> list[Goal]:
    return [
        Goal(f"layer {shape} bf16 cuda", group, f"time {mode}", limit)
        for shape in _SHAPES
        for group, limit in _ON_A_GPU.items()
        for mode in MODES["cuda"]
    ]


def _block_goals() -> list[Goal]:
    return [
        Goal(BLOCK, group, "time eager", _BLOCK_LORA if group == "lora" else _BLOCK_OTHERS)
        for group in (*_COUNTERS, "dora input", "dora loha", "dora lokr")
    ]


def _gain_goals() -> list[Goal]:
    return [
        Goal(FIDELITY, group, f"gain {size}", limit, decimals=2, form="exact_delta")
        for group in EXACT
        for size, limit in _GAINS.items()
    ]


def judge(sections: Mapping[str, Sequence[Row]]) -> list[Verdict]:
    """Say of each goal of the measured sections whether it was met.

    Args:
        sections: Section name to its rows.

    Returns:
        One verdict for each goal whose subject was measured.
    """
    return [
        _verdict(goal, rows)
        for goal in all_goals()
        if (rows := sections.get(goal.section)) and any(_is_subject(row, goal) for row in rows)
    ]


def _is_subject(row: Row, goal: Goal) -> bool:
    return (row.source, row.group, row.form) == (OURS, goal.group, goal.form)


def _verdict(goal: Goal, rows: Sequence[Row]) -> Verdict:
    own = next(_value(row, goal.quantity) for row in rows if _is_subject(row, goal))
    peer, against = 1.0, goal.against
    if goal.against != FROZEN:
        peers = [
            (value, row.name)
            for row in rows
            if row.group == goal.group
            and row.source not in (OURS, FROZEN)
            and goal.against in (BEST_PEER, row.source)
            and (value := _value(row, goal.quantity)) is not None
        ]
        if not peers:
            return Verdict(goal, None, goal.against, None)
        peer, against = min(peers)
    if own is None:
        return Verdict(goal, None, against, None)
    ratio = own / peer
    compared = ratio if goal.decimals is None else round(ratio, goal.decimals)
    reached = compared >= goal.limit if goal.quantity.startswith("gain") else compared <= goal.limit
    return Verdict(goal, round(ratio, 4), against, reached)


def _value(row: Row, quantity: str) -> float | None:
    name, _, which = quantity.partition(" ")
    if name == "gain":
        return row.gains.get(which) if isinstance(row, FidelityRow) else None
    if name != "time":
        return getattr(row, name)
    ratio = None
    if isinstance(row, LayerRow):
        ratio = row.times.get(which)
    elif isinstance(row, BlockRow):
        ratio = row.time
    return None if ratio is None or ratio.failure else ratio.median
