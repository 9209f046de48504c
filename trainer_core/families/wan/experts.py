"""Which noise levels a base of Wan is trained at: Wan 2.2 A14B is two models."""

from __future__ import annotations

from pathlib import PurePath

from ...config import BaseSection
from ...errors import BaseModelError
from ..experts import HIGH, named_role, names_one_of_two

_BORDER = 0.875
"""Where its makers go over to the other one (``boundary_ratio`` of Diffusers' pipeline)."""

_SWITCH = 0.889
"""Where ComfyUI's workflows do: after half of the steps, at shift 8."""


def levels_of(base: BaseSection) -> tuple[float, float]:
    """`PredictionSpec.levels_of`: of one of two by its file's name, and as far as either goes.

    Raises:
        BaseModelError: When it is one of two, and its name does not say which.
    """
    name = PurePath(base.path).name
    role = named_role(name)
    if role:
        return (_BORDER, 1.0) if role == HIGH else (0.0, _SWITCH)
    if names_one_of_two(name):
        raise BaseModelError(
            f"base.path: {name} is one of two models, and its name does not say which",
            "the one for high noise or the one for low noise",
            "Put high_noise or low_noise into the file's name.",
        )
    return 0.0, 1.0
