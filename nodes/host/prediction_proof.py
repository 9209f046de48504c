"""Whether a MODEL is trained on what KSampler samples: proven on a run's first passes.

What a node has put on a MODEL cannot be told from its name. A kernel without a backward pass gives
no gradient, a patch may carry state from one pass to the next, or take the noise level of one image
for a whole batch. Each of these ends in an adapter that was trained on something else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...trainer_core.device import is_out_of_memory
from ...trainer_core.errors import BaseModelError, TrainerError
from ...trainer_core.printable import listed
from .clip_and_vae_inputs import patches_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .reference_images import ReferenceProof

_APART = 0.1
"""Most of a prediction by which a faster attention, or rounding of another batch, changes it."""
_CHANGED = 0.01
"""More than rounding makes of the same image in one pass; below, references have a pass alone."""
_LEVELS = (0.9, 0.2)
_NAMED = 4
_FACTOR = re.compile(r"\.\w+\.default(\.\w+)?$")
"""What stands behind a layer's path in that of a factor, as in ``.lora_A.default.weight``."""
_BLOCK = re.compile(r"(.*?[a-z_])\.(\d+)\.")
_UNFIT = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_REMEDY = (
    "Connect the MODEL from before the node that patches it, and put that node behind Load LoRA "
    "for KSampler."
)

Predict = Callable[..., Any]
"""(noisy latents `[B, C, h, w]`, sigma `[B]`, exact attention) to a prediction `[B, C, h, w]`."""


class PredictionProof:
    """Two passes before a run's first step, and a look at the gradients of that."""

    def __init__(self, patcher: Any) -> None:
        self._patcher = patcher
        self._proven = 0
        self._passed = False
        self._watched: _Gradients | None = None

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Around a pass: tell of an error before the first one that came to its end.

        Raises:
            BaseModelError: In the place of what a network makes of another model's CLIP, or a patch
                of a pass that it was not written for.
        """
        try:
            yield
        except _UNFIT as error:
            if self._passed or is_out_of_memory(error) or isinstance(error, TrainerError):
                raise
            raise BaseModelError(
                f"a MODEL that cannot predict ({error}); {_on(self._patcher)}",
                "the CLIP that the model is sampled with, and no patch that stops it",
                f"Connect that CLIP where captions are encoded. {_REMEDY}",
            ) from error
        self._passed = not self.due

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Around a run: tell of an error of autograd in its first step.

        Raises:
            BaseModelError: In the place of what torch says of a patch that it cannot follow.
        """
        try:
            yield
        except RuntimeError as error:
            if not self.due or not re.search("gradient|backward", str(error)):
                raise
            raise self._refused(f"a MODEL that has no gradient ({error})") from error

    @property
    def due(self) -> bool:
        """Whether there is still something to be proven."""
        return not self._proven or self._watched is not None

    def is_due(self, batch: int) -> bool:
        """Whether there is still something to be proven of a pass of so many images."""
        return self.due or min(batch, 2) > self._proven

    def require(
        self,
        predict: Predict,
        noisy: Tensor,
        denoiser: nn.Module,
        batch: int,
        references: ReferenceProof | None = None,
    ) -> None:
        """Refuse a MODEL that is not trained on what is sampled; call it before each pass.

        Args:
            predict: Of one sample's conditioning, repeated for as many latents as it gets; a third
                one has other reference images.
            noisy: Latents of that sample, `[1, C, h, w]`.
            batch: Images of the pass. Of one alone, all that is beside it has its noise level.
            references: Is told where reference images change the prediction by far; None without.

        Raises:
            BaseModelError: When an image's prediction depends on the image beside it or on a pass
                before, when an attention changes it, or when a layer got no gradient.
        """
        if self._watched is not None:
            without, self._watched = self._watched.missing(), None
            if without:
                raise self._refused(
                    f"a MODEL of which {len(without)} adapted layers got no gradient in the first "
                    f"step ({listed(without, _NAMED)})"
                )
        if (several := min(batch, 2)) > self._proven:
            first, self._proven = not self._proven, several
            levels = _LEVELS if several > 1 else _LEVELS[1:] * 2
            self._compare(predict, noisy, levels, references)
            self._watched = _Gradients(denoiser) if first else None

    def _compare(
        self,
        predict: Predict,
        noisy: Tensor,
        pair: tuple[float, ...],
        references: ReferenceProof | None,
    ) -> None:
        import torch

        others = int(references is not None and not references.proven)
        levels = torch.tensor([*pair, *pair[1:] * others], device=noisy.device)
        together = torch.cat([noisy.flip(-1), *[noisy] * (1 + others)])
        with torch.no_grad():
            _, beside, *edited = predict(together, levels, exact=True).split(1)
            if references is not None and edited:
                references.proven = _distance(edited[0], beside) > _CHANGED
            levels = levels[:2]
            sampled = predict(noisy, levels[1:], exact=False)
            apart = _distance(beside, sampled)
            if apart <= _APART:
                return
            alone = predict(noisy, levels[1:], exact=True)
        if _distance(alone, sampled) > _APART:
            raise self._refused(
                "a MODEL whose attention has no gradient, and torch's, which has one, predicts "
                f"something else ({apart:.0%} apart)"
            )
        raise self._refused(
            "a MODEL whose prediction of an image depends on the image beside it or on the pass "
            f"before ({apart:.0%} apart)"
        )

    def _refused(self, found: str) -> BaseModelError:
        return BaseModelError(
            f"{found}; {_on(self._patcher)}",
            "a MODEL that predicts in a run what KSampler predicts",
            _REMEDY,
        )


class _Gradients:
    """Which adapted layers took part in a pass, and which of them got a gradient."""

    def __init__(self, denoiser: nn.Module) -> None:
        self._called: dict[str, None] = {}
        self._reached: set[str] = set()
        self._watched: set[str] = set()
        self._hooks: list[Any] = []
        for path, factor in denoiser.named_parameters():
            if factor.requires_grad:
                name = _FACTOR.sub("", path)
                note_call, note_gradient = self._notes(name)
                self._hooks.append(factor.register_post_accumulate_grad_hook(note_gradient))
                if name not in self._watched:
                    self._watched.add(name)
                    layer = denoiser.get_submodule(name)
                    self._hooks.append(layer.register_forward_pre_hook(note_call))

    def _notes(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def note_call(*_: object) -> None:
            self._called[name] = None

        def note_gradient(_: object) -> None:
            self._reached.add(name)

        return note_call, note_gradient

    def missing(self) -> list[str]:
        """The layers without a gradient; nothing reads a part of what the last block gives."""
        for hook in self._hooks:
            hook.remove()
        if not self._reached:
            return []  # No backward pass has been yet that reached this model.
        last: dict[str, int] = {}
        for name in self._called:
            if found := _BLOCK.match(name):
                last[found[1]] = max(last.get(found[1], 0), int(found[2]))
        return [
            name
            for name in self._called
            if name not in self._reached
            and (found := _BLOCK.match(name))
            and int(found[2]) != last[found[1]]
        ]


def _distance(one: Tensor, other: Tensor) -> float:
    """Relative, in float64; infinite where one of them is not finite."""
    one, other = one.double().cpu(), other.double().cpu()
    if not (one.isfinite().all() and other.isfinite().all()):
        return float("inf")
    return float((one - other).norm() / other.norm().clamp_min(1e-12))


def _on(patcher: Any) -> str:
    """What nodes have put on a MODEL, by the functions that they gave."""
    names = sorted(set(patches_of(patcher)))
    return f"it carries {listed(names, _NAMED)}" if names else "no patch of it is known"
