"""`Adviser`: advice on a run's losses, norms and previews, each sentence once, with its remedy.

Everything is judged by what the loop records anyway: the adapter's size, the losses on held-out
images, and the previews. The thresholds stand here alone, each with where it comes from.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...config.optimizer import OptimizerSection
from ...config.section import most_of
from ...config.training import TrainingSection
from ...data.report.duplicates import FLAT, MOST_BITS, different_bits, look_hashes
from ...data.report.image_fingerprints import image_look, look_at_images
from ...errors import StorageError
from ..observer import CHECKPOINT, Advised, Observer

ADVICE = "advice"
"""Where ``run.json`` keeps what was said, so that a run that goes on says nothing twice."""

RATE, STEPS = "training.optimizer.learning_rate", "training.steps"

INERT = 8e-4
"""A change of the weights that teaches nothing: of 62 runs of the embedded base (lora, lokr, loha;
eight rates, three seeds), those that ended below it had lowered the loss on trained images by 3 %
at the most, those above by 8 % at least (docs/metrics.md)."""

LEARNS = 2.0**-7
"""The change at which these runs were best on held-out images; a new rate aims at it."""

MOVED = 0.05
"""Share of the held-out loss whose change shows that an adapter does something."""

OVERBAKED = 1.0
"""A change of the middle block that is as large as its weights (docs/metrics.md)."""

OVERTURNED = 0.5
"""The same of a rotation, of which 2 is the most: 29 degrees on average."""

HEALTHY = 0.25
"""Share of these at which no run of the table in docs/metrics.md had fallen apart."""

RISE, _NOISES, _ROW = 0.05, 4.0, 3
"""The loss rises where the last three measurements lie above the three around the lowest one by a
twentieth, and by four times the scatter between neighbours. Simulated with noise of 0.5 to 10 %,
40 measurements each: at most 1 % of flat and of falling curves are told of."""

EQUAL, ALONE = 3.2, 0.4
"""A preview equals a training image where nine times eight greys differ by at most 3.2 of 255 on
average, and by at most 0.4 of what lies between it and the next training image. On the embedded
base, previews that had become training images had at most 2.7 and 0.3, and all others at least 3.7
and 0.4, the base's own among them."""

_SETTLED_STEPS = 100
"""So many steps behind the warm-up an adapter has moved."""

_LARGER_RATE, _MORE_STEPS = 100.0, 10.0
"""Factors that no advice goes beyond: nothing that was measured reaches farther."""

_MOST_RATE = most_of(OptimizerSection, "learning_rate")
_MOST_STEPS = most_of(TrainingSection, "steps")
_LESS = 0.5
"""Share of a setting, or of its new value, above which the change would be too small to name."""

_MOST_IMAGES = 1000
"""So many training images are looked at, in about a second of one core for small files."""


@dataclass(frozen=True, slots=True)
class Course:
    """What of a run's settings its advice depends on.

    Attributes:
        rate: ``training.optimizer.learning_rate``.
        steps: Length of the run.
        warmup: Steps in which the learning rate rises.
        finds_rate: Whether the optimizer finds the learning rate itself.
        turns: Whether the adapter rotates weights.
        before: What there was before the first step, in words.
        images: The training images, where previews can be compared with them; else nothing.
        of_base: Kept previews that the base drew, of a run that goes on.
    """

    rate: float
    steps: int
    warmup: int = 0
    finds_rate: bool = False
    turns: bool = False
    before: str = "the base"
    images: Callable[[], Sequence[Path]] = tuple
    of_base: Callable[[], Sequence[Path]] = tuple


class Adviser:
    """Judges a run, and tells the observer once of each fault that has a remedy.

    Args:
        before: What was said before, as ``run.json`` has it; it may come from anybody.
        keep: Writes all that was said into ``run.json``.
        checkpoints: The steps of those on the disk.
    """

    def __init__(
        self,
        course: Course,
        observer: Observer,
        before: object = (),
        *,
        keep: Callable[[list[dict[str, Any]]], None] = lambda advice: None,
        checkpoints: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._course, self._observer = course, observer
        self._keep, self._checkpoints = keep, checkpoints
        self._known = {each["name"]: each for each in read_advice(before)}
        self._memory: TrainingLooks | None = None
        self._clean: list[int] = []

    def size(self, step: int, norms: Mapping[str, float], moved: float | None = None) -> None:
        """StoppingObserver the adapter's size behind a step.

        Args:
            norms: Block to the norm of its change over that of its weights.
            moved: Share by which the loss on held-out images has changed, where it is known.
        """
        course, shares = self._course, sorted(norms.values())
        middle, largest = shares[len(shares) // 2], shares[-1]
        settled = min(_SETTLED_STEPS + course.warmup, course.steps)
        # A constant step of the weights each time is the most that an optimizer makes.
        at_end = largest * course.steps / step
        if step >= settled and at_end < INERT and (moved is None or abs(moved) < MOVED):
            how, setting, value = self._raised(at_end)
            self._say(
                "hardly_moves",
                step,
                f"The adapter hardly moves: after {step} steps it changes no block's weights by "
                f"more than {100 * largest:.2g} %. {how} whether adapter.targets names the right "
                "layers.",
                setting=setting,
                value=value,
            )
        limit = OVERTURNED if course.turns else OVERBAKED
        if middle > limit:
            self._say_lower(
                "over_baked",
                step,
                f"After {step} steps the adapter changes the weights of the middle block by "
                f"{100 * middle:.0f} % of what they are: images are likely to fall apart. Use an "
                "earlier checkpoint, or a strength below 1",
                HEALTHY * limit / middle,
            )

    def held_out(self, step: int, losses: Mapping[int, float], base: float = math.inf) -> None:
        """StoppingObserver the losses on held-out images.

        Args:
            losses: Of the steps behind which it was measured, by step.
            base: The loss before the first step; infinite where it is not known.
        """
        curve = [(at, loss) for at, loss in sorted(losses.items()) if 0 < at <= step]
        best = best_before_rise([loss for _, loss in curve])
        if best is not None and curve[best][1] >= base:
            self.ended(step, *curve[best], base)
        elif best is not None and curve[best][0] in self._checkpoints():
            self._say(
                "held_out_rises",
                step,
                f"The loss on held-out images rises since step {curve[best + 1][0]}: step "
                f"{curve[best][0]} is the best so far. Use its checkpoint.",
                setting=CHECKPOINT,
                value=curve[best][0],
            )

    def ended(self, step: int, best: int, loss: float, base: float) -> None:
        """StoppingObserver a run that is done, or gets no better any more.

        Args:
            best: Step of the lowest loss on held-out images; 0 where none was measured.
        """
        if best and loss >= base:
            self._say_lower(
                "never_better",
                step,
                f"On held-out images the adapter was never better than {self._course.before}: the "
                f"loss was {base:.4g} before the first step, and {loss:.4g} at its lowest, at step "
                f"{best}. Add images",
                # A whole run then moves as far as this one had where it was nearest.
                best / max(best + 1, self._course.steps),
            )

    def preview(self, step: int, image: Image.Image) -> None:
        """Compare a preview with the training images."""
        if "memorized" in self._known:
            return
        if self._memory is None:
            self._memory = TrainingLooks(self._course.images(), self._course.of_base())
        equal = self._memory.equal_to(image, is_base=step == 0)
        if equal is None:
            self._clean.append(step)
            return
        # Another prompt of this step may have been clean; the adapter is not.
        clean = max((each for each in self._clean if each < step), default=0)
        earlier = [each for each in self._checkpoints() if each <= clean]
        fewer = max(1, min(clean or step, step // 2))
        setting, value = (CHECKPOINT, max(earlier)) if earlier else (STEPS, fewer)
        how = f"Use the checkpoint of step {value}" if earlier else f"Train {value} steps ({STEPS})"
        self._say(
            "memorized",
            step,
            f"At step {step} a preview equals the training image {equal}: it is learned by heart. "
            f"{how}, or add images.",
            setting=setting,
            value=value,
        )

    def _raised(self, at_end: float) -> tuple[str, str, float]:
        """What to do about a run that ends with such a change: in words, the setting, its value."""
        course, factor = self._course, LEARNS / at_end if at_end > 0 else 0.0
        if course.finds_rate:
            steps = min(math.ceil(course.steps * min(factor, _MORE_STEPS)), int(_MOST_STEPS))
            if steps * _LESS >= course.steps:
                return f"Train {steps} steps ({STEPS}), or see", STEPS, steps
        else:
            most = rounded_down(min(course.rate * _LARGER_RATE, _MOST_RATE))
            rate = min(one_digit(course.rate * factor), most)
            if rate * _LESS >= course.rate:
                return f"Raise the learning rate to {rate:g} ({RATE}), or see", RATE, rate
        # Without a gradient no rate is of use.
        return "See", "", 0.0

    def _say_lower(self, name: str, step: int, words: str, factor: float) -> None:
        course = self._course
        if course.finds_rate:
            setting, present, value = STEPS, course.steps, math.floor(course.steps * factor)
            how = f", or train {value} steps ({STEPS})"
        else:
            setting, present, value = RATE, course.rate, rounded_down(course.rate * factor)
            how = f", or lower the learning rate to {value:g} ({RATE})"
        if not 0 < value <= _LESS * present:
            how, setting, value = "", "", 0.0
        self._say(name, step, f"{words}{how}.", setting=setting, value=value)

    def _say(self, name: str, step: int, message: str, setting: str, value: float) -> None:
        if name in self._known:
            return
        advice = Advised(message, name, step, setting=setting, value=value)
        self._known[name] = asdict(advice)
        with contextlib.suppress(StorageError):
            self._keep(list(self._known.values()))
        self._observer.notify(advice)


def one_digit(value: float) -> float:
    """A number in one digit that means something, as a person would choose it."""
    return float(f"{value:.0e}")


def rounded_down(value: float) -> float:
    """The same, at most the number itself; 0 of one that is not above 0."""
    if value <= 0:
        return 0.0
    power = math.floor(math.log10(value))
    # What was computed may lie a last binary digit below what was meant.
    return float(f"{math.floor(value / 10.0**power + 1e-9)}e{power}")


def best_before_rise(losses: Sequence[float]) -> int | None:
    """Where the loss was lowest, if it has risen since by more than its scatter.

    The scatter is the median of the differences of neighbours, and of their second differences,
    as standard deviations of independent noise.

    Args:
        losses: By rising step.
    """
    if len(losses) < _ROW + 2:
        return None
    values = np.asarray(losses, dtype=np.float64)
    best = int(values.argmin())
    if len(values) - 1 - best < _ROW:
        return None
    normal = 1.4826  # the median of absolute values times this is the deviation of a normal one
    scatter = normal * max(
        median(np.abs(np.diff(values)).tolist()) / math.sqrt(2),
        median(np.abs(np.diff(values, 2)).tolist()) / math.sqrt(6),
    )
    around = float(values[max(0, best - 1) : best + 2].mean())
    last = values[-_ROW:]
    risen = float(last.mean()) - around
    above = float(last.min()) > around
    return best if above and risen > max(_NOISES * scatter, RISE * values[best]) else None


class TrainingLooks:
    """The training images, small and grey, to find a preview among them.

    Where backgrounds are plain or training images resemble each other, a preview that is near to
    them says nothing: one has to be far nearer to it than the others.

    Args:
        paths: The training images.
        of_base: Images that the base drew by itself, as `equal_to` is told of them.
    """

    def __init__(self, paths: Sequence[Path], of_base: Sequence[Path] = ()) -> None:
        looks = look_at_images(paths[:_MOST_IMAGES])
        whole = [at for at in range(len(paths[:_MOST_IMAGES])) if at not in looks.broken]
        self._names = [paths[at].name for at in whole]
        self._looks = looks.looks[whole].astype(np.float32)
        self._hashes = look_hashes(looks.looks[whole])
        base = look_at_images(of_base)
        shown = (look for at, look in enumerate(base.looks) if at not in base.broken)
        self._of_base = {each for look in shown if (each := self._nearest(look)) is not None}

    def equal_to(self, image: Image.Image, *, is_base: bool = False) -> str | None:
        """The name of the training image that a preview equals, if it equals one.

        Args:
            is_base: Whether the base drew it: what that draws by itself was not learned here.
        """
        nearest = self._nearest(np.frombuffer(image_look(image), dtype=np.uint8))
        if nearest is not None and is_base:
            self._of_base.add(nearest)
        return None if nearest is None or nearest in self._of_base else self._names[nearest]

    def _nearest(self, look: NDArray[np.uint8]) -> int | None:
        if len(self._names) < 2 or int(look.max()) - int(look.min()) <= FLAT:
            return None
        moved = look.astype(np.float32) - self._looks
        far = np.abs(moved - moved.mean(axis=1, keepdims=True)).mean(axis=1)
        nearest = int(far.argmin())
        bits = int(different_bits(look_hashes(look[None]), self._hashes[nearest : nearest + 1])[0])
        second = float(np.partition(far, 1)[1])
        if far[nearest] > EQUAL or far[nearest] >= ALONE * second or bits > MOST_BITS:
            return None
        return nearest


def read_advice(found: object) -> list[dict[str, Any]]:
    """What ``run.json`` keeps of advice, without what is none; the file may come from anybody."""
    texts, numbers = ("name", "message", "setting"), ("step", "value")
    return [
        {name: each[name] for name in (*texts, *numbers)}
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, dict)
        and all(isinstance(each.get(name), str) for name in texts)
        and all(isinstance(each.get(name), int | float) for name in numbers)
    ]
