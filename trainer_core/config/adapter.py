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
        "Leave it on lokr, or take lora for programs that read nothing else. 'lora': low-rank "
        "product. 'lokr': Kronecker product. 'loha': Hadamard product of two low-rank products. "
        "'oft': a rotation of the weight's rows, nothing added; only ComfyUI and LyCORIS read it.",
    )
    rank: int = setting(
        16,
        "Raise it when details are missing although the run was long enough; lower it for a "
        "smaller file, or when the adapter copies your images. Rank of the factors. oft: size of "
        "the blocks that are rotated, or of the largest below it that fill a layer's outputs.",
        ge=1,
        le=4096,
    )
    alpha: float | None = setting(
        None,
        "Leave it unset; set it to follow a recipe that names one. It makes the adapter weaker or "
        "stronger while it trains: scale = alpha / rank. Unset: alpha = rank, so that the scale "
        "is 1.",
        gt=0.0,
    )
    rslora: bool = setting(
        False,
        "Leave it off unless you use a high rank with an alpha of its own. Scale = alpha / "
        "sqrt(rank) instead of alpha / rank, so that a high rank is not scaled away. Files hold "
        "an alpha that means the same to every reader.",
        advanced=True,
    )
    targets: str | list[str] = setting(
        "default",
        "Leave it on default; another preset changes more of the base, or less. Which layers are "
        "adapted: the name of a preset of the family ('default', 'attention', 'attention_mlp', "
        "'all_linear', ...) or a list of regular expressions on layer names.",
        advanced=True,
    )
    include: list[str] = setting(
        [],
        "Leave it empty unless the preset misses a layer that you want. Regular expressions of "
        "layers to adapt as well; include wins over exclude.",
        advanced=True,
    )
    exclude: list[str] = setting(
        [],
        "Leave it empty unless certain layers should stay as they are. Regular expressions of "
        "layers to leave out.",
        advanced=True,
    )
    rank_pattern: dict[str, int] = setting(
        {},
        "Leave it empty unless some layers should learn more than others. Another rank for layers "
        "that match: regular expression to rank.",
        advanced=True,
    )
    alpha_pattern: dict[str, float] = setting(
        {},
        "Leave it empty unless some layers should be scaled in another way. Another alpha for "
        "layers that match: regular expression to alpha.",
        advanced=True,
    )
    factor: int = setting(
        2,
        "Raise it for a smaller file; lower it when the adapter follows your images too slowly. "
        "Only for lokr: size of the small factor; -1 takes the most balanced split.",
        ge=-1,
        le=4096,
    )
    full_matrix: bool = setting(
        False,
        "Switch it on when a lokr does not get close enough to your images and the file may be "
        "larger. Only for lokr: keeps the second factor whole, whatever the rank.",
    )
    decompose_both: bool = setting(
        False,
        "Leave it off unless the file has to be smaller still. Only for lokr: splits the first "
        "factor into two low-rank parts as well.",
        advanced=True,
    )
    dora: bool = setting(
        False,
        "Leave it off; switch it on to get closer to your images at a low rank, where slower "
        "steps are fine. DoRA: trains the magnitude of each row or column of the weight beside "
        "its direction, which is often closer to full training.",
    )
    dora_axis: Literal["input", "output"] = setting(
        "input",
        "Leave it on input, which every ComfyUI reads rightly. Only with dora: what has a "
        "magnitude. 'input': columns. 'output': rows, as PEFT and LyCORIS by default.",
        advanced=True,
    )
    exact_delta: bool = setting(
        False,
        "Leave it off unless rounding in bf16 seems to swallow a small change. Computes base and "
        "adapter in one matrix product. For lora, for loha up to about rank 16 and for lokr with "
        "few rows in its mixing factor; others are computed as without. Costs a little memory.",
        advanced=True,
    )
    dropout: float = setting(
        0.0,
        "Leave it at 0; raise it a little when the adapter copies your images instead of learning "
        "from them. Share of the adapter's input features that a training step drops.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    rank_dropout: float = setting(
        0.0,
        "Leave it at 0; raise it a little when dropout alone does not keep the adapter from "
        "copying your images. Share of the adapter's output rows that a training step drops.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    rank_dropout_scale: bool = setting(
        True,
        "Leave it on; it means nothing without rank_dropout. Scales the rows that rank_dropout "
        "leaves up, so that their mean stays.",
        advanced=True,
    )
    module_dropout: float = setting(
        0.0,
        "Leave it at 0; raise it a little when the other dropouts do not keep the adapter from "
        "copying your images. Chance that a training step skips a layer's adapter.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    unbalanced: bool = setting(
        False,
        "Leave it off unless you follow a recipe of LyCORIS that says so. Only for lokr: gives "
        "the first factor the larger share of the outputs, where it otherwise has the smaller "
        "one.",
        advanced=True,
    )
    tucker: bool = setting(
        False,
        "Leave it off unless you adapt convolutions and want a smaller file. Convolutions whose "
        "window is larger than one place: a small core of its own for the window. Fewer "
        "parameters.",
        advanced=True,
    )
    init: AdapterInit = setting(
        "default",
        "Leave it on default, which lets one learning rate move every kind alike; all start at a "
        "delta of zero. 'lycoris': as LyCORIS. Only lora: 'gaussian' as PEFT; 'orthogonal'; "
        "'pissa' and 'olora', from the weight, in files of twice the rank; 'eva', from a look at "
        "the data. Initialization.",
        advanced=True,
    )
    start_from: str | None = setting(
        None,
        "Set it to train an adapter that you have further. A file of the same kind, in layout "
        "comfyui or diffusers. Another rank or lokr factor is fitted as closely as it allows, and "
        "the error is reported. A resumed run goes on from its checkpoint instead.",
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

ROTATIONS = ("oft",)
"""Kinds that multiply the weight: what they make of it is never longer than it."""

DIFFERENCES = ("pissa", "olora")
"""Values of ``adapter.init`` whose factors are differences from a part of the weight."""

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
