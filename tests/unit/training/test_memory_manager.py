"""Errors of a full device are known, a rehearsed update changes nothing, and steps get smaller."""

import random
import weakref
from itertools import pairwise

import pytest
import torch

from tests.fixtures.small_device import SmallDevice
from tests.fixtures.small_steps import SHAPES, Model, batch_of, maker
from tests.fixtures.swapped_blocks import MAKERS, place
from trainer_core.device import is_out_of_memory
from trainer_core.errors import RunError
from trainer_core.families.registry import get_family
from trainer_core.offload.machine import Machine
from trainer_core.offload.possible_plans import StepPace
from trainer_core.training.memory import device_errors
from trainer_core.training.memory.device_errors import explain_device_errors, skipped_when_full
from trainer_core.training.memory.memory_manager import MemoryManager, SmallerStep
from trainer_core.training.observer import SilentObserver
from trainer_core.training.optimizers import rehearse
from trainer_core.training.step.processes import SingleProcess
from trainer_core.training.step.split_batches import SplitBatches


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (MemoryError(), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_a_full_device_is_one(error, known):
    assert is_out_of_memory(error) is known


@pytest.mark.parametrize("raised", [True, False])
def test_what_filled_the_device_goes_before_the_error_does(raised, monkeypatch):
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def fill():
        full = torch.ones(3)
        held.append(weakref.ref(full))
        raise torch.OutOfMemoryError("no room")

    if raised:
        with pytest.raises(RunError) as caught, explain_device_errors("a step"):
            fill()
        alive.append(held[0]() is not None)
        assert caught.value.__cause__ is not None
    else:
        note = lambda device: alive.append(held[0]() is not None)  # noqa: E731
        monkeypatch.setattr(device_errors, "release_memory", note)
        processes = SingleProcess(torch.device("cpu"))
        with skipped_when_full("previews", processes, SilentObserver()):
            fill()
    assert alive == [False]


def made(optimizer=torch.optim.AdamW, **options):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(40, 8)) for _ in range(3)]
    parameters[1].data.zero_()
    parameters[2].data.mul_(0.0)  # zeros of both signs
    groups = [
        {"params": parameters[:2], "weight_decay": 0.1, "rate": 2.0},
        {"params": parameters[2:], "weight_decay": 0.0, "lr": 0.5},
    ]
    return parameters, optimizer(groups, lr=1e-2, **options)


def bits(tensors):
    return [each.detach().clone().view(torch.int32) for each in tensors]


def test_an_update_without_room_fails_in_the_rehearsal_and_leaves_nothing():
    parameters, optimizer = made()
    before = bits(parameters)
    device = SmallDevice()
    with device:
        device.hold(parameters)
        device.limit = device.now + 5 * parameters[0].nbytes
        with pytest.raises(torch.OutOfMemoryError):
            rehearse(optimizer)
        assert device.now == device.limit - 5 * parameters[0].nbytes
        device.limit = None
        rehearse(optimizer)
        assert all(map(torch.equal, bits(parameters), before))
        # From now on an update takes no more than the rehearsal has taken.
        device.limit = device.peak
        for each in parameters:
            each.grad = torch.zeros_like(each)
        optimizer.step()


def manager_of(placed, observer=None, **options):
    observer = observer or SilentObserver()
    return MemoryManager(placed, *made(), observer, lambda step: None, **options)


def memory_manager(measured, *, shrinks=False, **options):
    placed = place(MAKERS["flux"](), get_family("flux"), 4, slots=1)
    options |= {"smaller": SmallerStep(placed)} if shrinks else {}
    return placed, manager_of(placed, measure=lambda: measured, **options)


@pytest.mark.parametrize(
    ("free", "size", "may_grow", "wanted"),
    [
        (10**9, 10**9, True, 0),
        (10**9, 10**9, False, 4),
        (500 * 10**6, 10**9, True, 4),  # 500 MB stay free
        (10**9, 20 * 10**9, True, 4),  # 5 percent do
        (10**9 + 10**8, 20 * 10**9, True, 0),
        (-1, 10**9, True, 4),
    ],
)
def test_room_is_used_once_and_only_where_the_plan_may_change(free, size, may_grow, wanted):
    placed, manager = memory_manager((free, size), may_grow=may_grow)
    manager.between_steps()
    assert placed.count == 4  # nothing is known before the first step
    manager.retry_when_full(1, lambda: None)
    manager.between_steps()
    assert placed.count == wanted
    placed.swap(5)
    manager.retry_when_full(2, lambda: None)
    manager.between_steps()
    assert placed.count == 5
    placed.close()


def full_once(full=True):
    """Work that the device has no room for the first time."""
    fails = iter([full, False])

    def work():
        if next(fails):
            raise torch.OutOfMemoryError("no room")
        return "done"

    return work


def test_after_memory_was_full_no_block_comes_back():
    placed, manager = memory_manager((10**9, 10**9), shrinks=True, may_grow=True)
    assert manager.retry_when_full(1, full_once()) == "done"
    manager.between_steps()
    assert placed.count == 5
    placed.close()


class Shared(Machine):
    """Its device's memory is used by others, too, and torch may keep some of it in pieces.

    Attributes:
        others: Bytes that they have.
        pieces: Bytes that nobody may take before torch's cache is emptied.
        looks: How often the room at a step's peak was measured.
    """

    slack = 10**9

    def __init__(self, planned):
        self.others, self.pieces, self.looks = 0, 0, 0
        self.placed = place(MAKERS["flux"](), get_family("flux"), planned, slots=1, machine=self)
        self.planned = planned
        self.manager = manager_of(self.placed, measure=self.measure)

    def measure(self):
        self.looks += 1
        return self.free(), 10**9

    def free(self):
        blocks = self.placed.device_bytes(self.planned) - self.placed.device_bytes(
            self.placed.count
        )
        return self.slack - self.others + blocks

    def missing_memory(self, device):
        return max(0, self.pieces - self.free())

    def run(self, steps, change=lambda step: None):
        """How many blocks are swapped after each step."""
        found = []
        for step in range(1, steps + 1):
            change(step)
            self.manager.between_steps()
            self.manager.retry_when_full(step, lambda: None)
            found.append(self.placed.count)
        return found


@pytest.mark.parametrize("seed", range(4))
def test_blocks_go_for_others_and_return_and_never_back_and_forth(seed):
    machine, draw = Shared(planned=seed % 2), random.Random(seed)
    most, taken = machine.placed.most, [0, 0, 3 * 10**8, 10**9 + 30_000, 2 * 10**9]

    def change(step):
        if seed == 3:  # whoever wants it back as soon as it is taken back
            machine.others = 2 * 10**9 * (machine.placed.count == machine.planned)
        elif draw.random() < (0.5, 0.1, 0.02)[seed]:
            machine.others, machine.pieces = draw.choice(taken), draw.choice([0, 10**10])

    found = machine.run(2000, change)
    assert max(found) == most
    assert min(found) == machine.planned
    returns = sum(after < before for before, after in pairwise(found))
    assert returns <= 6 + 2000 / 256
    machine.others, machine.pieces = 0, 0
    assert machine.run(2 * 256 + 2)[-1] == machine.planned
    machine.placed.close()


def test_what_torch_keeps_in_pieces_is_no_need_of_others():
    machine = Shared(planned=1)
    machine.pieces = 10**10
    assert set(machine.run(1000)) == {1}
    assert machine.looks <= 2 * (6 + 1000 / 32)
    machine.placed.close()


class Pressed(Machine):
    """Others need memory of its device, and its RAM is full."""

    missing = 0

    def missing_memory(self, device):
        return self.missing

    def free_ram(self):
        return 0


class Listener(SilentObserver):
    def __init__(self):
        self.heard = []

    def notify(self, event):
        self.heard.append(event.message)


@pytest.mark.parametrize("full", [False, True])
def test_what_blocks_keep_is_given_back_for_good(full):
    listener, rooms, again = Listener(), [], []
    machine = Pressed()
    placed = place(MAKERS["flux"](), get_family("flux"), 0, machine=machine)
    placed.keep, placed.needs_choice = lambda room: rooms.append(room) or 3, lambda: not again
    placed.uncheckpointed = lambda: 3 * (bool(rooms) and not again)
    placed.checkpoint_all = lambda: again.append(3) or 3
    given = (placed, *made(), listener, lambda step: None)
    manager = MemoryManager(
        *given, smaller=SmallerStep(placed), measure=lambda: (2 * 10**9, 10**10)
    )
    for step in range(1, 9):
        manager.between_steps()
        machine.missing = 10**9 * (step in {4, 5} and not full)
        manager.retry_when_full(step, full_once(full and step == 4))
    assert set(rooms) == {15 * 10**8}
    assert len(rooms) == 3  # behind each of the steps before
    assert again == [3]
    kept, computed = listener.heard
    assert "3 blocks keep their activations" in kept
    assert "3 more blocks compute their activations again" in computed


def test_others_that_need_memory_do_not_end_a_run_without_ram_for_its_blocks():
    machine, listener = Pressed(), Listener()
    machine.missing = 10**9
    placed = place(MAKERS["flux"](), get_family("flux"), 2, slots=1, machine=machine)
    manager = manager_of(placed, listener)
    for step in (1, 2):
        manager.between_steps()
        assert manager.retry_when_full(step, lambda: "done") == "done"
    assert placed.count == 2
    (line,) = listener.heard
    assert "0.0 GiB are free" in line
    placed.close()


def splitting(samples=4):
    given = maker(Model(SHAPES["plain"]), batch_of(SHAPES["plain"], tuple(range(samples))))
    split = SplitBatches(given)
    list(split(1, 0))
    return split


def smaller(pace, unchecked):
    placed = place(MAKERS["flux"](), get_family("flux"), 0, slots=2)
    left = [unchecked]

    def checkpoint_all():
        more, left[0] = left[0], 0
        return more

    placed.checkpoint_all, placed.uncheckpointed = checkpoint_all, lambda: left[0]
    return placed, SmallerStep(placed, splitting(), pace)


def taken(step):
    """All that can be done, in order."""
    said = []
    while True:
        try:
            line = step.take()
        except RunError as error:
            return said, error.found
        words = ("compute again" if "again" in line else "swap" if "swapped" in line else "split",)
        said += words


FAST, SLOW = 1e15, 1.0
"""A link that makes swapping cost nothing, and one over which it takes for ever."""


@pytest.mark.parametrize(
    ("pace", "unchecked", "order"),
    [
        # Nothing is known: what changes no number comes first.
        (None, 2, ["compute again", "swap", "split", "split"]),
        (None, 0, ["swap", "split", "split"]),
        # Sending costs nothing, and what rounds in another way is not clearly faster.
        (StepPace(1.0, FAST), 0, ["swap", "split", "split"]),
        (StepPace(1.0, FAST), 1, ["compute again", "swap", "split", "split"]),
        # A third of the step is the activations that are not computed again.
        (StepPace(1.0, FAST), 5, ["split", "split", "compute again", "swap"]),
        # Over a slow link blocks are swapped only when nothing else is left.
        (StepPace(1e-9, SLOW), 0, ["split", "split", "swap"]),
        (StepPace(1e-9, SLOW), 1, ["compute again", "split", "split", "swap"]),
    ],
)
def test_the_order_is_that_of_the_time_that_is_lost(pace, unchecked, order):
    placed, step = smaller(pace, unchecked)
    said, found = taken(step)
    assert said == order
    assert found == "all blocks are swapped, and samples go through the base one by one"
    placed.close()


def test_what_a_step_takes_is_the_longer_of_computing_and_sending():
    pace = StepPace(full=3.0, link_bytes_per_s=10.0)
    assert pace.seconds(1.0, 0, 1, 2) == 3.0
    assert pace.seconds(0.0, 0, 1, 2) == 2.0  # nothing is computed twice
    assert pace.seconds(1.0, 20, 1, 2) == 3.0
    assert pace.seconds(1.0, 20, 2, 2) == 4.0  # sent once for each part
    assert pace.seconds(1.0, 20, 1, 1) == 5.0  # nothing is sent ahead
    # `full` is all of its micro-batches, and each of them sends.
    assert StepPace(3.0, 10.0, 2).seconds(1.0, 20, 1, 2) == 4.0
