"""What waits for the backward pass is known by its memory, not by an address used twice."""

import torch

from trainer_core.training.live_bytes import LiveBytes
from trainer_core.training.step_marks import Marks, Phase

BYTES = 4 << 10


def note(marks, block, tensor):
    marks.note(Phase("", 0, block), LiveBytes(), (tensor,))


def inputs_of(marks, count):
    marks.note(Phase(""), LiveBytes(), ())
    return [marks.numbers(1)[Phase("inputs", 0, block)] for block in range(count)]


def test_inputs_that_are_gone_neither_wait_nor_hide_those_that_got_their_address():
    """As of Z-Image's refiners, which no gradient reaches where they are not adapted."""
    marks, gone = Marks(), 8
    for block in range(gone):
        tensor = torch.empty(BYTES, dtype=torch.uint8)
        note(marks, block, tensor)
        del tensor
    kept = [torch.empty(BYTES, dtype=torch.uint8) for _ in range(gone)]
    for block, tensor in enumerate(kept, gone):
        note(marks, block, tensor)
    assert inputs_of(marks, 2 * gone) == [0] * gone + [BYTES] * gone


def test_an_input_of_two_blocks_is_of_neither_alone():
    marks, shared, own = Marks(), torch.empty(BYTES), torch.empty(BYTES)
    note(marks, 0, shared)
    marks.note(Phase("", 0, 1), LiveBytes(), (shared, own))
    assert inputs_of(marks, 2) == [0, own.nbytes]
