"""The encoded examples the transformer is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trainer_core.demo.vocabulary import CAPTION_TEMPLATES, Combination

from .conditioning import Conditioner, TextBatch, joined
from .examples import EditExample, random_bar_edit, random_copy, random_edit
from .latents import LatentCodec
from .vocabulary import held_out_combinations, training_combinations

POOL_SEED = 31
BAR_SHARE = 0.25
COPY_SHARE = 0.05


@dataclass(frozen=True)
class Pool:
    """Encoded edits; both of their pictures also serve as captioned pictures.

    Attributes:
        controls: Latent tokens of the pictures before, ``[N, n, 4z]``.
        targets: Latent tokens of the pictures after, ``[N, n, 4z]``.
        control_captions: Row of each control's first caption in ``captions``, ``[N]``.
        target_captions: The same for the targets, ``[N]``.
        described: Whether its caption says all that a target shows, bool ``[N]``.
        instructions: Text conditioning of the edits: N prompts with words,
            then the same N without any words.
        captions: Text conditioning of all captions; the last row is empty.
    """

    controls: torch.Tensor
    targets: torch.Tensor
    control_captions: torch.Tensor
    target_captions: torch.Tensor
    described: torch.Tensor
    instructions: TextBatch
    captions: TextBatch


def _alternating(conditioner: Conditioner, texts: list[str], images: np.ndarray) -> TextBatch:
    """Encodes even rows in the form of one edit pipeline, odd rows in the other's."""
    parts = [
        conditioner.instructions(texts[start::2], images[start::2], plus=bool(start))
        for start in range(2)
    ]
    both = joined(parts)
    order = torch.empty(len(texts), dtype=torch.long)
    order[0::2] = torch.arange(len(texts[0::2]))
    order[1::2] = torch.arange(len(texts[1::2])) + len(texts[0::2])
    return TextBatch(both.states[order], both.mask[order])


def caption_table(
    conditioner: Conditioner, combinations: list[Combination]
) -> tuple[TextBatch, dict[Combination, int]]:
    """Encodes every wording of every combination, and the empty caption last.

    Returns:
        The encoded captions, and the row of the first wording per combination.
    """
    wordings = range(len(CAPTION_TEMPLATES))
    texts = [c.caption(wording) for c in combinations for wording in wordings]
    rows = {c: i * len(CAPTION_TEMPLATES) for i, c in enumerate(combinations)}
    return conditioner.captions([*texts, ""]), rows


def build_pool(conditioner: Conditioner, codec: LatentCodec, count: int) -> Pool:
    """Draws and encodes the training examples.

    Args:
        conditioner: Encodes the texts.
        codec: Encodes the pictures.
        count: Number of edits.
    """
    random = np.random.default_rng(POOL_SEED)
    seen, unseen = training_combinations(), frozenset(held_out_combinations())
    edits = [_random_example(seen, unseen, random) for _ in range(count)]
    captions, rows = caption_table(conditioner, seen)
    controls = np.stack([edit.control_image for edit in edits])
    return Pool(
        controls=codec.encode(controls),
        targets=codec.encode(np.stack([edit.target_image for edit in edits])),
        control_captions=_rows(rows, [edit.control for edit in edits]),
        target_captions=_rows(rows, [edit.target for edit in edits]),
        described=torch.tensor([edit.described for edit in edits]),
        instructions=joined(
            [
                _alternating(conditioner, [edit.instruction for edit in edits], controls),
                _alternating(conditioner, [""] * count, controls),
            ]
        ),
        captions=captions,
    )


def _random_example(
    seen: list[Combination], unseen: frozenset[Combination], random: np.random.Generator
) -> EditExample:
    """Mostly edits of one attribute; the others teach to keep all that is not spoken of."""
    lot = random.random()
    if lot < BAR_SHARE:
        return random_bar_edit(seen, random)
    if lot < BAR_SHARE + COPY_SHARE:
        return random_copy(seen, random)
    return random_edit(seen, unseen, random)


def _rows(rows: dict[Combination, int], shown: list[Combination]) -> torch.Tensor:
    return torch.tensor([rows[combination] for combination in shown])
