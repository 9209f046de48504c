"""Settings of the adapter; `AdapterConfig` is also what `trainer_core.adapters.attach` takes."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting

AdapterKind = Literal["lora", "loha", "lokr"]


class AdapterConfig(Section):
    """Kind, size and targets of the adapter."""

    kind: AdapterKind = setting(
        "lokr",
        "'lora': low-rank product. 'loha': Hadamard product of two low-rank products. "
        "'lokr': Kronecker product.",
    )
    rank: int = setting(
        16, "Rank of the factors. Larger learns more and weighs more.", ge=1, le=4096
    )
    alpha: float | None = setting(
        None, "Scale = alpha / rank. Unset: alpha = rank, so that the scale is 1.", gt=0.0
    )
    targets: str | list[str] = setting(
        "default",
        "Which layers are adapted: the name of a preset of the family ('default', 'attention', "
        "'attention_mlp', 'all_linear', ...) or a list of regular expressions on layer names.",
    )
    include: list[str] = setting(
        [], "Regular expressions of layers to adapt as well; include wins over exclude."
    )
    exclude: list[str] = setting([], "Regular expressions of layers to leave out.")
    rank_pattern: dict[str, int] = setting(
        {}, "Another rank for layers that match: regular expression to rank.", advanced=True
    )
    alpha_pattern: dict[str, float] = setting(
        {}, "Another alpha for layers that match: regular expression to alpha.", advanced=True
    )
    factor: int = setting(
        -1,
        "lokr: size of the small factor; -1 takes the most balanced split. Smaller factors give "
        "larger adapters.",
        ge=-1,
        le=4096,
    )
    full_matrix: bool = setting(False, "lokr: keep the second factor whole, whatever the rank.")
    decompose_both: bool = setting(
        False, "lokr: split the first factor into two low-rank parts as well.", advanced=True
    )
    dropout: float = setting(
        0.0, "Share of the adapter's input features that a training step drops.", ge=0.0, lt=1.0
    )
    rank_dropout: float = setting(
        0.0,
        "Share of the adapter's output rows that a training step drops.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    module_dropout: float = setting(
        0.0, "Chance that a training step skips a layer's adapter.", advanced=True, ge=0.0, lt=1.0
    )
