"""Settings of the adapter; `AdapterConfig` is also what `trainer_core.adapters.attach` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from .section import Section, setting

AdapterKind = Literal["lora", "loha", "lokr", "oft"]
AdapterInit = Literal["default", "lycoris", "gaussian", "orthogonal", "pissa", "olora", "eva"]


class AdapterConfig(Section):
    """Kind, size and targets of the adapter."""

    kind: AdapterKind = setting(
        "lokr",
        "'lora': low-rank product. 'loha': Hadamard product of two low-rank products. "
        "'lokr': Kronecker product. 'oft': a rotation of the weight's rows instead of something "
        "added to them; for ComfyUI and LyCORIS alone.",
    )
    rank: int = setting(
        16,
        "Rank of the factors. Larger learns more and weighs more. oft: size of the blocks that are "
        "rotated, or of the largest below it that fill a layer's outputs.",
        ge=1,
        le=4096,
    )
    alpha: float | None = setting(
        None, "Scale = alpha / rank. Unset: alpha = rank, so that the scale is 1.", gt=0.0
    )
    rslora: bool = setting(
        False,
        "Scale = alpha / sqrt(rank) instead of alpha / rank, so that a high rank is not scaled "
        "away. Files hold an alpha that means the same to every reader.",
        advanced=True,
    )
    targets: str | list[str] = setting(
        "default",
        "Which layers are adapted: the name of a preset of the family ('default', 'attention', "
        "'attention_mlp', 'all_linear', ...) or a list of regular expressions on layer names.",
        advanced=True,
    )
    include: list[str] = setting(
        [],
        "Regular expressions of layers to adapt as well; include wins over exclude.",
        advanced=True,
    )
    exclude: list[str] = setting([], "Regular expressions of layers to leave out.", advanced=True)
    rank_pattern: dict[str, int] = setting(
        {}, "Another rank for layers that match: regular expression to rank.", advanced=True
    )
    alpha_pattern: dict[str, float] = setting(
        {}, "Another alpha for layers that match: regular expression to alpha.", advanced=True
    )
    factor: int = setting(
        2,
        "lokr: size of the small factor; -1 takes the most balanced split. A larger one gives a "
        "smaller adapter that follows its images more slowly.",
        ge=-1,
        le=4096,
    )
    full_matrix: bool = setting(False, "lokr: keep the second factor whole, whatever the rank.")
    decompose_both: bool = setting(
        False, "lokr: split the first factor into two low-rank parts as well.", advanced=True
    )
    dora: bool = setting(
        False,
        "DoRA: train the magnitude of each row or column of the weight beside its direction. Often "
        "closer to full training at low rank; each step costs more.",
    )
    dora_axis: Literal["input", "output"] = setting(
        "input",
        "DoRA: what has a magnitude. 'input': columns, which every ComfyUI reads rightly. "
        "'output': rows, as PEFT and LyCORIS by default.",
        advanced=True,
    )
    exact_delta: bool = setting(
        False,
        "Compute base and adapter in one matrix product, so that bf16 does not round a small delta "
        "away. For lora, for loha up to about rank 16 and for lokr with few rows in its mixing "
        "factor; others are computed as without. Costs a little memory.",
        advanced=True,
    )
    dropout: float = setting(
        0.0,
        "Share of the adapter's input features that a training step drops.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    rank_dropout: float = setting(
        0.0,
        "Share of the adapter's output rows that a training step drops.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    rank_dropout_scale: bool = setting(
        True,
        "Scale the rows that rank_dropout leaves up, so that their mean stays.",
        advanced=True,
    )
    module_dropout: float = setting(
        0.0, "Chance that a training step skips a layer's adapter.", advanced=True, ge=0.0, lt=1.0
    )
    unbalanced: bool = setting(
        False,
        "lokr: give the first factor the larger share of the outputs, where it otherwise has the "
        "smaller one.",
        advanced=True,
    )
    tucker: bool = setting(
        False,
        "Convolutions whose window is larger than one place: a small core of its own for the "
        "window. Fewer parameters.",
        advanced=True,
    )
    init: AdapterInit = setting(
        "default",
        "Initialization of the factors; each starts at a delta of zero. 'default': of a size at "
        "which one learning rate moves every kind alike. 'lycoris': LyCORIS's; for lora they are "
        "the same. lora only: 'gaussian', lora_down from N(0, 1 / rank^2), as PEFT; "
        "'orthogonal', half of the rank starts in lora_down and the other half in lora_up, PEFT's "
        "orthogonal turned so that the delta is exactly zero; 'pissa', the largest singular values "
        "of the weight, and 'olora', the first columns of its QR, both trained as differences, in "
        "files of twice the rank; 'eva', the main directions of the layer's inputs, from a look at "
        "the data before the first step.",
        advanced=True,
    )
    start_from: str | None = setting(
        None,
        "Adapter file of the same kind, in layout comfyui or diffusers, that training starts from. "
        "Another rank or lokr factor is fitted as closely as it allows, and the error is reported. "
        "A resumed run goes on from its checkpoint instead.",
    )


OF_KIND: Mapping[str, str] = {
    "adapter.factor": "lokr",
    "adapter.full_matrix": "lokr",
    "adapter.decompose_both": "lokr",
    "adapter.unbalanced": "lokr",
    "adapter.init": "lora",
    "training.optimizer.lora_plus_ratio": "lora",
}
"""YAML path of a setting to the kind that it belongs to."""

INIT_OF_EVERY_KIND = ("default", "lycoris")
"""Values of ``adapter.init`` that every kind has."""


UNUSED_BY: Mapping[str, Mapping[str, str]] = {
    "oft": {
        "alpha": "a rotation is multiplied by nothing, and readers take alpha for its limit",
        "alpha_pattern": "a rotation is multiplied by nothing",
        "rslora": "a rotation is multiplied by nothing",
        "dora": "a rotation keeps the columns' lengths, and no reader knows both",
        "exact_delta": "base and rotation are no one product",
        "dropout": "a rotation takes the layer's output, and none of its inputs",
        "tucker": "a rotation has no window",
    }
}
"""Kind to the settings of the adapter that mean nothing with it, to why."""
