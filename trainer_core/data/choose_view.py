"""What of a sample a step trains: one of its texts (of wildcards too) or none, controls, frames.

Every draw is named by the run's seed and by counters: by the step and the place in it where a share
of all samples is meant, by the sample and how often it was trained before where it goes through its
own texts and sides. So the same steps train the same views on any number of processes, however a
step is cut into passes, and after any resume.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..config import DatasetSection
from ..config.dataset import dataset_folders
from ..counters import counter_order, counter_seed
from ..types import ENDS, START, View
from .cache.cached_item import CachedItem, ItemKind


@dataclass(frozen=True, slots=True)
class Views:
    """Chooses the view of each sample.

    Attributes:
        caption_dropout: Share of samples with an empty caption, of each folder of the dataset.
        control_dropout: Share of steps without control images, of each folder.
        start_frame: Share of samples of clips that are given their first frame, if it is encoded.
        end_frame: Share of those that are given their last one, too.
    """

    seed: int
    caption_dropout: tuple[float, ...]
    control_dropout: tuple[float, ...]
    start_frame: float = 1.0
    end_frame: float = 0.0

    @classmethod
    def of(cls, dataset: DatasetSection, seed: int) -> Views:
        """Those that a run file asks for."""
        folders = [each.settings for each in dataset_folders(dataset)] or [dataset]
        return cls(
            seed,
            tuple(each.caption_dropout for each in folders),
            tuple(each.control_dropout for each in folders),
            start_frame=1.0 if dataset.start_frame is None else dataset.start_frame,
            end_frame=dataset.end_frame,
        )

    def of_sample(self, item: CachedItem, step: int, position: int, turn: int) -> View:
        """Choose what of a sample a step trains.

        Args:
            step: Optimizer step, from 1.
            turn: How often the sample was trained before in the run.

        Returns:
            A view of one of its texts. It goes through all of them, in an order that each round
            draws anew, before one comes again; and through both of its sides.
        """
        return View(
            caption=None if self._drops_caption(item, step, position) else self._text(item, turn),
            controls=not self.drops_controls(item, step),
            flipped=self._is_flipped(item, turn),
            endpoints=self._endpoints(item, turn),
        )

    def ordinary(self, item: CachedItem, step: int, turn: int, *, blank: bool) -> View:
        """The view at which a base is held to what it does alone: as `of_sample`, another text.

        Args:
            turn: How often it was trained before in the run.
            blank: Whether its text is the empty one, or that with the class word.
        """
        return View(
            caption=None if blank else self._text(item, turn),
            controls=not self.drops_controls(item, step),
            flipped=self._is_flipped(item, turn),
            ordinary=not blank,
            endpoints=self._endpoints(item, turn),
        )

    def drops_controls(self, item: CachedItem, step: int) -> bool:
        """Whether a step trains a sample without its control images.

        One number is drawn for all of the step: samples of a pass have to agree, and which ones
        share a pass must not matter. A folder with a larger share drops whenever one with a smaller
        share does.
        """
        share = self._share(self.control_dropout, item.folder)
        if not share or not item.control_buckets:
            return False
        return counter_seed(self.seed, "control_dropout", step) < share * 2.0**63

    def agreements(self, kinds: Sequence[ItemKind], folders: Sequence[int]) -> list[Hashable]:
        """What samples of a pass have to agree in, so that all or none are given their controls.

        Returns:
            For each sample its kind and, where folders have different shares, its folder's.
        """
        if len(set(self.control_dropout)) == 1:
            return list(kinds)
        pairs = zip(kinds, folders, strict=True)
        return [
            (kind, self._share(self.control_dropout, folder) if kind[0] else 0.0)
            for kind, folder in pairs
        ]

    def _drops_caption(self, item: CachedItem, step: int, position: int) -> bool:
        share = self._share(self.caption_dropout, item.folder)
        return drops_caption(share, self.seed, step, position)

    def _text(self, item: CachedItem, turn: int) -> int:
        count = item.captions
        if count == 1:
            return 0
        rounds, place = divmod(turn, count)
        size = item.bucket.width, item.bucket.height
        return counter_order(count, self.seed, "text", item.name, *size, rounds)[place]

    def _is_flipped(self, item: CachedItem, turn: int) -> bool:
        if item.flipped is None:
            return False
        size = item.bucket.width, item.bucket.height
        # Of two turns one is mirrored; which one is drawn.
        pair, place = divmod(turn, 2)
        return (counter_seed(self.seed, "flip", item.name, *size, pair) + place) % 2 == 1

    def _endpoints(self, item: CachedItem, turn: int) -> str:
        """Which frames of a clip are given; of an image there are none."""
        drawn = counter_seed(self.seed, "start_frame", item.name, item.bucket.width, turn) / 2.0**63
        return ENDS if drawn < self.end_frame else START if drawn < self.start_frame else ""

    @staticmethod
    def _share(shares: tuple[float, ...], folder: int) -> float:
        # A finished cache may have samples of folders that the run file does not name.
        return shares[folder] if folder < len(shares) else shares[0]


def drops_caption(probability: float, seed: int, step: int, position: int) -> bool:
    """Whether a sample of a step is trained with an empty caption.

    Args:
        probability: ``dataset.caption_dropout``, 0 to 1.
        step: Optimizer step, from 1.
    """
    return counter_seed(seed, "caption_dropout", step, position) < probability * 2.0**63
