"""Whether a model of the graph reads reference images, as Set Reference Latent gives them.

ComfyUI has no table of it. A model's class says whether it makes anything of them; whether its
network then looks at that is known once it has predicted with them and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import BaseModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REFERENCES = "reference_latents"
"""ComfyUI's name of them in a conditioning."""

UNFIT = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a network raises that has no place for reference images."""


def takes_references(model: Any) -> bool:
    """Whether a ``BaseModel`` makes anything of reference images."""
    return any(REFERENCES in _constants(code) for code in _codes(type(model)))


def _codes(kind: type) -> Iterator[CodeType]:
    """What runs when ``extra_conds`` is called: the class's own, and what that calls above it."""
    for each in kind.__mro__:
        code = getattr(vars(each).get("extra_conds"), "__code__", None)
        if code is not None:
            yield code
            if "super" not in code.co_names:
                return


def _constants(code: CodeType) -> set[Any]:
    found = {each for each in code.co_consts if isinstance(each, str)}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= _constants(each)
    return found


class ReferenceProof:
    """Predicts once with reference images and without, before a run trains on them.

    A model may take reference images and pass them over, as one of videos does that was made for
    texts alone. A run on such a model would learn nothing of them.

    Attributes:
        proven: Whether its prediction is known to depend on them.
    """

    def __init__(self) -> None:
        self.proven = False

    def require(self, predict: Callable[[bool], Tensor], kind: str, device: torch.device) -> None:
        """Refuse a model, of a kind of ComfyUI's, whose prediction does not depend on them.

        `predict` makes a prediction with reference images or without.

        Raises:
            BaseModelError: When both predictions are the same, or the network has no place for
                reference images.
        """
        import torch

        from ...trainer_core.device import borrowed_random_state

        if self.proven:
            return
        with torch.no_grad(), borrowed_random_state(device):
            without = predict(False)
            try:
                same = torch.equal(predict(True), without)
            except UNFIT as error:
                raise _refused(kind, "cannot predict with") from error
        if same:
            raise _refused(kind, "predicts the same with")
        self.proven = True


def _refused(kind: str, why: str) -> BaseModelError:
    return BaseModelError(
        f"control images, and a MODEL of {kind}, which {why} reference images",
        "a model that reads reference images (Set Reference Latent)",
        "Leave control images out, or choose a model for editing.",
    )
