"""Whatever is computed again, and wherever inputs wait for it, the trained bits are the same."""

import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Event

import pytest
import torch
from torch import nn

from tests.fixtures.combinations import each_once
from tests.fixtures.machines import CountingMachine
from tests.fixtures.swapped_blocks import BLOCKS, CPU, MAKERS, HesitantTransfer, Trained, make_batch
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig, MemorySection
from trainer_core.families.registry import get_family
from trainer_core.offload import pinned_memory
from trainer_core.offload.block_selection import checkpointed, evenly_spread, repeated_blocks
from trainer_core.offload.checkpointed_blocks import CheckpointedBlocks, checkpoint_blocks
from trainer_core.offload.host_inputs import HostArena, HostInputs
from trainer_core.offload.machine import Machine
from trainer_core.offload.pinned_memory import PinnedMemory
from trainer_core.offload.transfer import Transfer
from trainer_core.training.memory.simulated_bytes import LiveBytes

ADAPTERS = {
    "lora": {"kind": "lora"},
    "lokr dora": {"kind": "lokr", "factor": -1, "dora": True},
    "lora dora output": {"kind": "lora", "dora": True, "dora_axis": "output"},
    "dropout": {"kind": "lokr", "dropout": 0.3, "rank_dropout": 0.3, "module_dropout": 0.3},
}


class Checkpointing:
    """Checkpoints some blocks, with their inputs in RAM or not.

    Args:
        count: Of so many blocks.
        ram: Whether their inputs go to RAM, with copies that are made as late as can be.
        swapped: How many blocks are swapped.
    """

    def __init__(self, count, ram=False, swapped=0):
        self.count, self.swapped = count, swapped
        self.transfer = HesitantTransfer() if ram else None
        self.inputs = HostInputs(HostArena(), self.transfer, worth=1) if ram else None

    def __call__(self, transformer, family):
        blocks = repeated_blocks(transformer, family.layers.repeated_blocks)
        away = evenly_spread(self.swapped, len(blocks))
        chosen = set(checkpointed(self.count, away, len(blocks)))
        calls = CheckpointedBlocks(dict(enumerate(blocks)), chosen, self.inputs)
        if self.count != 0:
            family.layers.enable_checkpointing(transformer, calls)

    def taken(self):
        """Slots that have an input."""
        return [slot for slots in self.inputs.arena._slots.values() for slot in slots if slot.taken]


@cache
def plain(family, name):
    return Trained(family, ADAPTERS[name], accumulation=2, previews=True)


WAYS = {"none": 0, "two": 2, "all": None, "two, ram": 2, "all, ram": None}


@pytest.mark.parametrize(("family", "name", "way"), each_once(BLOCKS, ADAPTERS, WAYS))
def test_weights_are_the_same_for_every_count(family, name, way):
    ways = Checkpointing(WAYS[way], "ram" in way)
    found = Trained(family, ADAPTERS[name], accumulation=2, previews=True, checkpointing=ways)
    assert found.equals(plain(family, name))
    if ways.inputs is not None:
        assert not ways.taken()


@pytest.mark.parametrize(
    ("family", "lowest", "ways", "swapped"),
    [
        ("qwen_image", "transformer_blocks.3", Checkpointing(None), 0),
        ("flux", "single_transformer_blocks.1", Checkpointing(None, ram=True), 0),
        ("z_image", "layers.1", Checkpointing(None, swapped=3), 3),
    ],
)
def test_nothing_below_the_lowest_adapted_block_is_computed_again(family, lowest, ways, swapped):
    calls = [0] * BLOCKS[family]

    def count(transformer):
        blocks = repeated_blocks(transformer, get_family(family).layers.repeated_blocks)
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(
                lambda *_, number=number: calls.__setitem__(number, calls[number] + 1)
            )

    stem, number = lowest.rsplit(".", 1)
    others = rf"(?!{stem}\.[{number}-9]\.).*"
    adapter = {"kind": "lora", "exclude": [others]}
    Trained(family, adapter, swapped, steps=1, prepare=count, checkpointing=ways)
    assert calls == [1, 1, 1, 2, 2]
    if ways.inputs is not None:  # and nothing waits for it
        assert {number for number, _ in ways.inputs.arena._slots} == {3, 4}


class Blocks(nn.Module):
    """Blocks with a shared input, that give two views of one memory.

    Args:
        spoil: A block that writes into its input.
        fail: A block that fails when it is called again.
    """

    def __init__(self, inputs, spoil=None, fail=None):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 8) for _ in range(4))
        self.inputs, self.spoil, self.fail = inputs, spoil, fail
        self.called = set()

    def forward(self, image, text, shared, masks):
        for number in range(len(self.weights)):
            call = self.call(number)
            text, image = self.inputs.call(call, number, (image, text, shared, masks))
        return image.square().sum() + text.sum()

    def call(self, number):
        def block(image, text, shared, masks):
            if number in self.called and number == self.fail:
                raise MemoryError
            self.called.add(number)
            if number == self.spoil:
                image.data.mul_(1), image.detach().mul_(2)
            both = (torch.cat([text, image], 1) @ self.weights[number] * shared * masks[0]).sin()
            return both[:, : text.shape[1]], both[:, text.shape[1] :]

        return block


def start():
    torch.manual_seed(3)
    image = torch.randn(2, 6, 8, requires_grad=True)
    return image, torch.randn(2, 3, 8), torch.randn(8, requires_grad=True), (torch.ones(8),)


@pytest.mark.parametrize("options", [{"spoil": 2}, {"fail": 1}, {}])
def test_ram_is_free_again_after_an_error_and_after_a_step_that_is_given_up(options):
    inputs = HostInputs(HostArena(), HesitantTransfer(), worth=1)
    model = Blocks(inputs, **options)
    loss = None
    with contextlib.suppress(RuntimeError, MemoryError):
        loss = model(*start())
        if "fail" in options:
            loss.backward()
    del loss
    gc.collect()
    assert not any(slot.taken for slots in inputs.arena._slots.values() for slot in slots)
    healthy = Blocks(inputs)
    image, *rest = start()
    healthy(image, *rest).backward()
    assert torch.isfinite(image.grad).all()


def test_a_steps_bytes_shrink_by_what_waits_in_ram():
    class Wide(nn.Module):
        def forward(self, x):
            return (x * 2).sin()

    blocks, size = [Wide() for _ in range(6)], 1 << 22
    peaks = []
    for ram in (False, True):
        inputs = HostInputs(HostArena(), Transfer()) if ram else None
        calls = CheckpointedBlocks(dict(enumerate(blocks)), set(range(6)), inputs)
        for live in (LiveBytes(), LiveBytes()):
            with live:
                x = torch.zeros(1, requires_grad=True) + torch.zeros(size // 4)
                for block in blocks:
                    x = calls(block, x)
                x.sum().backward()
                del x
        peaks.append(live.peaks[None] - (inputs.arena.size if inputs else 0))
    # All inputs but those of the block that is computed again, and of the next one.
    assert peaks[0] - peaks[1] == pytest.approx(4 * size, rel=0.05)


def steps_within(family, samples, limit=None, chosen=()):
    """Gradients, FLOPs and peaks of steps, and how many blocks keep their activations in each."""
    transformer, spec = MAKERS[family](), get_family(family)
    live, found = LiveBytes(), []
    blocks = repeated_blocks(transformer, spec.layers.repeated_blocks)
    measured = (lambda: live.now, lambda: live.begin(object())) if limit else ()
    calls = CheckpointedBlocks(dict(enumerate(blocks)), set(chosen), None, *measured)
    spec.layers.enable_checkpointing(transformer, calls)
    layers = {"presets": spec.layers.presets, "unused": spec.layers.unused(transformer)}
    parameters = attach(transformer, AdapterConfig(rank=2), **layers).train().parameters()
    torch.manual_seed(0)
    for each in parameters:
        torch.nn.init.normal_(each, std=0.05)
    with live:
        for count in samples:
            live.peaks.clear()
            live.begin(count)
            noisy, sigma, texts, target = make_batch(family, count)
            flops, kept = live.flops, calls.uncheckpointed()
            output = spec.prediction.predict(transformer, noisy, sigma, texts, [], 2.0)
            gradients = torch.autograd.grad((output - target).square().mean(), parameters)
            del output
            peak = max(live.peaks.values())
            found.append((gradients, live.flops - flops, peak, kept))
            if calls.needs_choice():
                calls.keep(limit - live.peaks[live._phase])
    return found


@pytest.mark.parametrize(
    "family", [pytest.param("qwen_image", marks=pytest.mark.exhaustive), "flux"]
)
def test_blocks_keep_their_activations_in_what_a_step_leaves_free(family):
    samples = [1, 1, 2, 1, 2]
    again, dense = (steps_within(family, samples, chosen=each) for each in (range(5), ()))
    least, most = again[-1][2], dense[-1][2]
    for limit, fewest in ((least, 0), ((least + most) // 2, 1), (2 * most, 5)):
        found = steps_within(family, samples, limit, range(5))
        for one, other in zip(found, again, strict=True):
            assert all(map(torch.equal, one[0], other[0]))
            assert one[2] <= max(limit, other[2])
        *_, (_, flops, _, kept) = found
        assert (kept == 5) == (fewest == 5)
        assert kept >= fewest
        if fewest != 1:
            assert flops == (dense if fewest else again)[-1][1]
        else:
            assert dense[-1][1] < flops < again[-1][1]
        # Inputs that are larger than any before are computed again.
        assert found[2][1] == again[2][1]


class LateDriver:
    """Reads pinned memory until it is drained."""

    def __init__(self):
        self.reading, self.gone = True, 0

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        assert not self.reading
        self.gone += 1
        return 0


def test_ram_that_became_too_small_is_kept_until_nobody_reads_it(monkeypatch):
    driver = LateDriver()
    monkeypatch.setattr(pinned_memory, "_runtime", lambda: driver)

    class Noted(Transfer):
        def submit(self, copies):
            driver.reading = True
            super().submit(copies)

        def drain(self):
            driver.reading = False

        close = drain

    inputs = HostInputs(HostArena(PinnedMemory(CountingMachine(10**6))), Noted(), worth=1)
    # Micro-batches of two sizes, between which nobody waits for the device.
    for size in (16, 64):
        x = torch.randn(size, 8, requires_grad=True)
        inputs.call(nn.Tanh(), 0, (x,)).sum().backward()
    assert driver.gone == 1
    inputs.close()
    assert driver.gone == 2


@pytest.mark.parametrize(
    ("memory", "enabled", "ram"),
    [
        ({}, True, False),
        ({"gradient_checkpointing": False}, False, False),
        ({"blocks_to_checkpoint": 0}, True, False),  # more may be later
        ({"blocks_to_checkpoint": 2, "checkpoint_inputs": "ram"}, True, True),
    ],
)
def test_settings_decide(memory, enabled, ram):
    transformer, family = MAKERS["qwen_image"](), get_family("qwen_image")
    with contextlib.ExitStack() as at_end:
        calls = checkpoint_blocks(
            transformer, family, MemorySection(**memory), CPU, Machine(), at_end
        )
        assert transformer.gradient_checkpointing is enabled
        assert (calls is not None) is enabled
        if calls is not None:
            assert len(calls.chosen) == memory.get("blocks_to_checkpoint", 5)
            assert (calls._inputs is not None) is ram


class InOneThread(Transfer):
    """Copies in one thread, as CUDA does from memory that is not pinned."""

    def __init__(self):
        self.thread = ThreadPoolExecutor(1)

    def submit(self, copies):
        return self.thread.submit(super().submit, copies)

    def wait(self, ticket):
        ticket.result()

    def close(self):
        self.thread.shutdown(cancel_futures=True)


@pytest.mark.parametrize("back", [False, True])
def test_inputs_may_be_dropped_in_the_thread_that_copies_them(back):
    inputs = HostInputs(HostArena(), InOneThread(), worth=1)
    thread, go, kept = inputs._transfer.thread, Event(), []
    if back:
        kept.append(inputs.keep((0, 0), torch.ones(6)))
        kept[0].arrive()
    # As where garbage is collected there, in front of the copy.
    dropped = thread.submit(lambda: go.wait() and kept.clear())
    kept[0].send_back() if back else kept.append(inputs.keep((0, 0), torch.ones(6)))
    (slot,) = inputs.arena._slots[0, 0]
    go.set()
    dropped.result(timeout=20)
    assert len(inputs.arena.returned) == 1  # what is written to stays until it is
    # The memory is used again once the copy is done.
    again = inputs.keep((0, 0), torch.arange(6.0))
    assert again._slot is slot
    assert not inputs.arena.returned
    assert torch.equal(again.take(), torch.arange(6.0))
