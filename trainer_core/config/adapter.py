"""Settings of the adapter; `AdapterConfig` is also what `trainer_core.adapters.attach` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .patterns import wrong_patterns
from .section import Other, Problem, Section, setting

AdapterKind = Literal["lora", "loha", "lokr", "oft"]
AdapterInit = Literal["default", "lycoris", "gaussian", "orthogonal", "pissa", "olora", "eva"]


ROTATIONS = ("oft",)
"""Kinds that multiply the weight: what they make of it is never longer than it."""

DIFFERENCES = ("pissa", "olora")
"""Values of ``adapter.init`` whose factors are differences from a part of the weight."""

_LOKR = Other("kind", "lokr")
_NO_SCALE = Other("kind", "oft", such_as="lora", because="a rotation is multiplied by nothing")


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
        not_with=Other(
            "kind",
            "oft",
            such_as="lora",
            because="a rotation is multiplied by nothing, and readers take alpha for its limit",
        ),
    )
    rslora: bool = setting(
        False,
        "Leave it off unless you use a high rank with an alpha of its own. Scale = alpha / "
        "sqrt(rank) instead of alpha / rank, so that a high rank is not scaled away. Files hold "
        "an alpha that means the same to every reader.",
        advanced=True,
        not_with=(
            _NO_SCALE,
            Other(
                "full_matrix",
                because="with both factors whole there is no rank, and the scale is 1",
            ),
        ),
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
        not_with=_NO_SCALE,
    )
    factor: int = setting(
        2,
        "Raise it for a smaller file; lower it when the adapter follows your images too slowly. "
        "Only for lokr: size of the small factor; -1 takes the most balanced split.",
        ge=-1,
        le=4096,
        only_with=_LOKR,
        neutral=(-1,),
    )
    full_matrix: bool = setting(
        False,
        "Switch it on when a lokr does not get close enough to your images and the file may be "
        "larger. Only for lokr: keeps the second factor whole, whatever the rank.",
        only_with=_LOKR,
    )
    decompose_both: bool = setting(
        False,
        "Leave it off unless the file has to be smaller still. Only for lokr: splits the first "
        "factor into two low-rank parts as well.",
        advanced=True,
        only_with=_LOKR,
        not_with=Other("full_matrix", because="full_matrix keeps both factors whole"),
    )
    dora: bool = setting(
        False,
        "Leave it off; switch it on to get closer to your images at a low rank, where slower "
        "steps are fine. DoRA: trains the magnitude of each row or column of the weight beside "
        "its direction, which is often closer to full training.",
        not_with=Other(
            "kind",
            "oft",
            such_as="lora",
            because="a rotation keeps the columns' lengths, and no reader knows both",
        ),
    )
    dora_axis: Literal["input", "output"] = setting(
        "input",
        "Leave it on input, which every ComfyUI reads rightly. Only with dora: what has a "
        "magnitude. 'input': columns. 'output': rows, as PEFT and LyCORIS by default.",
        advanced=True,
        only_with=Other("dora"),
    )
    exact_delta: bool = setting(
        False,
        "Leave it off unless rounding in bf16 seems to swallow a small change. Computes base and "
        "adapter in one matrix product. For lora, for loha up to about rank 16 and for lokr with "
        "few rows in its mixing factor; others are computed as without. Costs a little memory.",
        advanced=True,
        not_with=Other(
            "kind", "oft", such_as="lora", because="base and rotation are no one product"
        ),
    )
    dropout: float = setting(
        0.0,
        "Leave it at 0; raise it a little when the adapter copies your images instead of learning "
        "from them. Share of the adapter's input features that a training step drops.",
        advanced=True,
        ge=0.0,
        lt=1.0,
        not_with=Other(
            "kind",
            "oft",
            such_as="lora",
            because="a rotation takes the layer's output, and none of its inputs",
        ),
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
        only_with=Other("rank_dropout"),
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
        only_with=_LOKR,
    )
    tucker: bool = setting(
        False,
        "Leave it off unless you adapt convolutions and want a smaller file. Convolutions whose "
        "window is larger than one place: a small core of its own for the window. Fewer "
        "parameters.",
        advanced=True,
        not_with=Other("kind", "oft", such_as="lora", because="a rotation has no window"),
    )
    init: AdapterInit = setting(
        "default",
        "Leave it on default, which lets one learning rate move every kind alike; all start at a "
        "delta of zero. 'lycoris': as LyCORIS. Only lora: 'gaussian' as PEFT; 'orthogonal'; "
        "'pissa' and 'olora', from the weight, in files of twice the rank; 'eva', from a look at "
        "the data. Initialization.",
        advanced=True,
        only_with=Other(
            "kind",
            "lora",
            because="it speaks of the two factors of one product",
        ),
        neutral=("default", "lycoris"),
        not_with=Other(
            "dataset.slider.positive", of=("eva",), because="a slider has no images of its own"
        ),
    )
    start_from: str | None = setting(
        None,
        "Set it to train an adapter that you have further. A file of the same kind, in layout "
        "comfyui or diffusers. Another rank or lokr factor is fitted as closely as it allows, and "
        "the error is reported. A resumed run goes on from its checkpoint instead.",
        path="anchored",
        resumed="free",
    )

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        if self.kind == "lokr" and self.factor == 0:
            yield Problem(
                "adapter.factor is 0",
                "-1 for the most balanced split, or the size of a factor, at least 1",
                "Leave adapter.factor out, or set it to 1 or more.",
            )
        if self.init in {"pissa", "olora", "eva"} and self.start_from is not None:
            yield Problem(
                f"adapter.start_from is set and adapter.init is {self.init}",
                "one of them: both say where the factors start",
                "Leave adapter.init or adapter.start_from out. A file of a run with pissa or olora "
                "has twice that run's rank: go on from it with that rank and without adapter.init.",
            )
        for name in ("targets", "include", "exclude", "rank_pattern", "alpha_pattern"):
            patterns = getattr(self, name)
            yield from wrong_patterns(
                f"adapter.{name}", [] if isinstance(patterns, str) else patterns
            )
        for pattern, rank in self.rank_pattern.items():
            if rank < 1:
                yield Problem(
                    f"adapter.rank_pattern gives {pattern!r} the rank {rank}",
                    "ranks of at least 1",
                    "Raise the rank, or name the layer in adapter.exclude.",
                )
        for pattern, alpha in self.alpha_pattern.items():
            if alpha <= 0:
                yield Problem(
                    f"adapter.alpha_pattern gives {pattern!r} the alpha {alpha}",
                    "alphas above 0",
                    "Leave the layer out of adapter.alpha_pattern for alpha = rank.",
                )
