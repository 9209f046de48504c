"""Which of two MODELs one is, where each samples its own levels of noise (Wan 2.2 A14B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError
from ...trainer_core.families import base_names
from .socket_values import Expert

if TYPE_CHECKING:
    from ..host.graph_model import GraphModel

AUTO, NONE, HIGH, LOW = "auto", "all levels", "high noise", "low noise"
ROLES = (AUTO, NONE, HIGH, LOW)
SWITCH_AT = 0.5
"""As ComfyUI's own workflows: half of the steps for each."""

_KIND, _OF_WAN_21 = "WAN21", "img_emb"
"""ComfyUI's class of models among which such experts are; what Wan 2.1 has to begin with an image,
and Wan 2.2 has not."""

_BORDER, _BORDER_OF_IMAGE_TO_VIDEO = 0.875, 0.9
"""Shares of noise at which the makers of Wan 2.2 A14B go over to the other expert.

Source: the configurations of the models (``boundary_ratio`` of Diffusers' pipelines).
"""


@dataclass(frozen=True, slots=True)
class ExpertInputs:
    """What a node says of an expert.

    Attributes:
        role: One of `ROLES`.
        switch_at: As of `Expert`.
        other: The MODEL of the other expert, or None.
    """

    role: str = AUTO
    switch_at: float = SWITCH_AT
    other: Any = None


def expert_of(found: GraphModel, inputs: ExpertInputs) -> Expert | None:
    """Tell which of two experts a MODEL is, and what it is to train; None for one of all levels.

    It is trained from the border that its makers trained it to, and from the level at which the
    user's workflow goes over, whichever is further: so it is right wherever it is sampled.

    Raises:
        InputError: When the two are not the two experts of one model, the names of their files say
            otherwise, or nothing says which of two it is.
    """
    named = named_role(found.title)
    one = base_names.names_one_of_two(found.title) or _is_one_of_two(found)
    if inputs.role == AUTO and not named and one:
        raise InputError(
            f"{found.title} is one of two experts, and its name does not say which",
            "the expert for high noise or the one for low noise",
            f"Set expert to {HIGH} or {LOW}, or to {NONE} for both merged into one file.",
        )
    role = inputs.role if inputs.role != AUTO else named or NONE
    if named and role != named:
        raise _swapped(f"expert is {role}, and the file's name says {named} ({found.title})")
    if role == NONE:
        if inputs.other is None:
            return None
        raise InputError(
            f"other_expert is connected, and nothing says which of both {found.title} is",
            "the expert for high noise or the one for low noise",
            f"Set expert to {HIGH} or {LOW}, or disconnect other_expert.",
        )
    if not found.straight:
        raise InputError(
            f"expert is {role}, and {found.title} is not a flow model",
            "a model of which each expert samples its own levels of noise, such as Wan 2.2 A14B",
            f"Set expert to {NONE}.",
        )
    _require_other(found, role, inputs.other)
    shift, begins = found.shift, role == HIGH
    share = 1.0 - inputs.switch_at
    switch = shift * share / (1.0 + (shift - 1.0) * share)
    to_video = getattr(found.model, "image_to_video", False)
    border = _BORDER_OF_IMAGE_TO_VIDEO if to_video else _BORDER
    levels = (min(border, switch), 1.0) if begins else (0.0, max(border, switch))
    rounded = round(levels[0], 3), round(levels[1], 3)
    return Expert(begins, inputs.switch_at, rounded, config=found.config, other=inputs.other)


def may_be_expert(model: Any) -> bool:
    """Whether nothing but its file's name tells a MODEL from one of two experts."""
    from ..host.graph_model import GraphModel

    found = GraphModel(model)
    return found.kind == _KIND and getattr(found.denoiser, _OF_WAN_21, None) is None


def _is_one_of_two(found: GraphModel) -> bool:
    begins = found.starts is not None and found.starts.always
    return begins and found.kind == _KIND and getattr(found.denoiser, _OF_WAN_21, None) is None


def named_role(title: str) -> str:
    """`HIGH` or `LOW` where the name of a file says so; empty where it does not."""
    return {base_names.HIGH: HIGH, base_names.LOW: LOW}.get(base_names.named_role(title), "")


def _require_other(found: GraphModel, role: str, model: Any) -> None:
    if model is None:
        return
    from ..host.graph_model import GraphModel

    other = GraphModel(model)
    if other.config != found.config or other.space.channels != found.space.channels:
        raise InputError(
            f"model is {found.title}, and other_expert is {other.title}",
            "the two experts of one model",
            "Connect the other file of the same model to other_expert.",
        )
    if named_role(other.title) == role:
        raise _swapped(f"other_expert is {other.title}, which is for {role} too")
    if other.fingerprint == found.fingerprint:
        raise _swapped(f"model and other_expert are the same model ({found.title})")
    if other.shift != found.shift:
        raise InputError(
            f"model has shift {found.shift:.4g} and other_expert has {other.shift:.4g}",
            "the same shift on both, with which one sampling goes through both",
            "Set both to the shift of your workflow (ModelSamplingSD3).",
        )


def _swapped(found: str) -> InputError:
    return InputError(
        found,
        "at model the expert that is trained, at other_expert the other one",
        "Connect the other file, or set expert to auto.",
    )
