"""The loss ledger: which images of the dataset are learned worst.

A sample's error says more of its noise level than of the image: it is large where little noise
tells nothing of the direction. So each error is divided by the mean error that all samples had of
late at like noise levels. An image whose mean ratio stays above 1 is harder than the others: its
caption is wrong, it is damaged, or it shows something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...data.batch_plan import BatchPlan
from ...diffusion.noise_bands import band_of
from ...errors import InputError
from ...filesystem.storage import write_json
from ...filesystem.text_files import read_object
from ..step.micro_batch import SampleLoss

LEDGER = "ledger.json"
"""The file in a run's folder."""

MOST = 10_000
"""So many images are written, the worst ones."""

_BANDS = 20  # of equal width
_WINDOW = 64  # samples of a band whose mean is expected
_PRIOR = 3  # times that every image counts as seen with the error that is expected
_IMAGES, _EXPECTED = "ledger.images", "ledger.expected"


class ImageError(NamedTuple):
    """How an image was learned.

    Attributes:
        name: As in the dataset.
        ratio: Mean of its error over what was expected at its noise level; 1 is like the others.
        times: How often that was measured.
        last: The last time.
    """

    name: str
    ratio: float
    times: int
    last: float


class Ledger:
    """Counts what each sample of a dataset was off by.

    Args:
        samples: How many the dataset has.
        name: Index of a sample to its image's name; samples of one name are one image.
    """

    def __init__(self, samples: int, name: Callable[[int], str]) -> None:
        self._name = name
        # Sum of ratios, how many, the last one, and the step of that.
        self._images = torch.zeros(4, samples, dtype=torch.float64)
        # How many samples a band has seen, and their mean error of late.
        self._expected = torch.zeros(2, _BANDS, dtype=torch.float64)

    def add(self, step: int, indices: Mapping[int, int], errors: Sequence[SampleLoss]) -> None:
        """Take what the samples of a step were off by.

        Args:
            indices: Place in the step to index in the dataset.
            errors: Of the samples; one whose place is not known is left out.
        """
        known = [each for each in errors if each.position in indices and math.isfinite(each.error)]
        counts, means = self._expected
        # All of a step are compared with what was before it, so that their order does not matter.
        before = means.clone()
        for each in known:
            expected = float(before[band_of(each.sigma, _BANDS)])
            if expected > 0:
                column = self._images[:, indices[each.position]]
                ratio = each.error / expected
                column += torch.tensor([ratio, 1.0, 0.0, 0.0], dtype=torch.float64)
                column[2], column[3] = ratio, step
        for each in known:
            band = band_of(each.sigma, _BANDS)
            counts[band] += 1
            means[band] += (each.error - means[band]) / min(float(counts[band]), _WINDOW)

    def images(self) -> list[ImageError]:
        """All images that were measured, the worst first.

        One that was seen a few times only is not put in front for a single large error: each counts
        as if it had been seen a few more times with the error that is expected.
        """
        found: dict[str, list[float]] = {}
        for index in self._images[1].nonzero().flatten().tolist():
            total, count, last, step = self._images[:, index].tolist()
            entry = found.setdefault(self._name(index), [0.0, 0.0, 0.0, -1.0])
            entry[0] += total
            entry[1] += count
            if step > entry[3]:
                entry[2:] = last, step
        order = sorted(
            found, key=lambda name: (-(found[name][0] + _PRIOR) / (found[name][1] + _PRIOR), name)
        )
        return [
            ImageError(name, total / count, int(count), last)
            for name in order
            for total, count, last, _ in [found[name]]
        ]

    def write(self, folder: Path, step: int) -> None:
        """Write the file of a run, whole or not at all.

        Raises:
            StorageError: When it cannot be written.
        """
        images = self.images()
        rows = [
            {**each._asdict(), "ratio": round(each.ratio, 4), "last": round(each.last, 4)}
            for each in images[:MOST]
        ]
        write_json(folder / LEDGER, {"step": step, "measured": len(images), "images": rows})

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {_IMAGES: self._images, _EXPECTED: self._expected}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave; what another dataset or an older version left is no use."""
        for name, own in self.tensors().items():
            stored = tensors.get(name)
            own.zero_()
            if stored is not None and stored.shape == own.shape:
                own.copy_(stored)


def indices_by_place(plan: BatchPlan, step: int) -> dict[int, int]:
    """Which sample of the dataset is at each place of a step.

    Args:
        step: From 1.
    """
    return {
        each.first + place: index
        for each in plan.passes(step)
        for place, index in enumerate(each.indices)
    }


def read_ledger(folder: Path) -> dict[str, Any]:
    """Read what `Ledger.write` wrote.

    Raises:
        InputError: When there is none, or it is damaged.
    """

    def refuse(reason: str) -> InputError:
        return InputError(
            f"{folder / LEDGER} cannot be read ({reason})",
            "the loss ledger of a run, which is written with each checkpoint",
            "Name a run that has a checkpoint.",
        )

    found = read_object(folder / LEDGER, refuse)
    try:
        images = [
            ImageError(str(e["name"]), float(e["ratio"]), int(e["times"]), float(e["last"]))
            for e in found["images"]
        ]
        rows = [each._asdict() for each in images]
        return {"step": int(found["step"]), "measured": int(found["measured"]), "images": rows}
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise refuse(f"{type(error).__name__}: {error}") from error
