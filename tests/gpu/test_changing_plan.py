"""Plans on CUDA: chosen for little room, changed with the same bits, and a full device survived."""

import gc

import pytest
import torch
from runs import CancelAfter, run_config

from tests.fixtures.machines import SmallMachine
from tests.gpu.memory import given_back
from tests.gpu.test_block_swap import CUDA, MASTERS, make_blocks, passes
from trainer_core.device import begin_peak, spare_at_peak
from trainer_core.errors import RunError
from trainer_core.offload.block_selection import evenly_spread
from trainer_core.offload.host_weights import block_spans
from trainer_core.offload.streamed_blocks import StreamedBlocks
from trainer_core.offload.transfer import CudaTransfer
from trainer_core.training import train
from trainer_core.training.observer import MemoryPlanned, RunStarted, Warned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("master", MASTERS)
def test_bits_are_those_of_resident_blocks_whatever_is_swapped(master):
    wanted = passes(make_blocks(CUDA))
    gc.collect()
    blocks, before = make_blocks(CUDA), torch.cuda.memory_allocated()
    every = {block: block_spans(block) for block in blocks}
    held = MASTERS[master]()
    if held.lasting:
        blocks = [block.to("cpu") for block in blocks]
    streamed = StreamedBlocks([], CUDA, 2, held, CudaTransfer(CUDA), every)
    if held.lasting:
        for block in blocks:
            streamed.place_rest(block, CUDA)
    try:
        for count in (3, 8, 1, 5, 0):
            streamed.change([blocks[each] for each in evenly_spread(count, len(blocks))])
            assert all(map(torch.equal, passes(blocks), wanted))
        gc.collect()
        assert torch.cuda.memory_allocated() <= before + 2**20
    finally:
        streamed.close()
    assert not any(block[0].weight.is_pinned() for block in blocks)


def test_what_was_free_at_the_peak_is_measured():
    def work():
        torch.empty(2**28, dtype=torch.uint8, device=CUDA)

    free = lambda: torch.cuda.mem_get_info(CUDA)[0]  # noqa: E731
    work()
    torch.cuda.empty_cache()
    before = free()
    begin_peak(CUDA)
    work()
    spare, size = spare_at_peak(CUDA, free)
    assert abs(before - 2**28 - spare) < 2**26
    assert size == torch.cuda.get_device_properties(CUDA).total_memory


class Fills(CancelAfter):
    """Takes all but so much of the device when the run starts."""

    def __init__(self, left):
        super().__init__(99)
        self.left, self.taken = left, None

    def notify(self, event):
        super().notify(event)
        if isinstance(event, RunStarted):
            gc.collect()
            torch.cuda.empty_cache()
            allowed = torch.cuda.memory_reserved() + self.left
            share = allowed / torch.cuda.get_device_properties(CUDA).total_memory
            torch.cuda.set_per_process_memory_fraction(share, CUDA)


def test_a_full_device_is_survived(tmp_path, cache):
    def run(name, observer=None):
        memory = {"device": "cuda", "gradient_checkpointing": True, "swap_slots": 1}
        training = {"steps": 3, "precision": "bf16", "batch_size": 8}
        return train(run_config(tmp_path / name, cache, memory=memory, training=training), observer)

    wanted = run("resident").losses
    # The allocator takes 20 MiB at a time: with less than that left, a run may have to end.
    for left in (2, 22, 42, 62):
        observer = Fills(left << 20)
        try:
            found = run(f"small {left}", observer)
        except RunError as error:
            assert "memory is full in step 1" in error.found  # noqa: PT017 - it may end well, too
            continue
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, CUDA)
        notes = [each.message for each in observer.events if isinstance(each, Warned)]
        if any("blocks are swapped" in each for each in notes):
            break
    else:
        pytest.fail("no run was survived with fewer blocks on the device")
    assert found.losses == pytest.approx(wanted, rel=2e-2)


def test_a_run_that_has_to_swap_learns_as_a_resident_one(tmp_path, cache):
    def run(plan):
        memory = {"device": "cuda", "gradient_checkpointing": True, "base_format": "dense"}
        training = {"steps": 4, "precision": "bf16"}
        observer = CancelAfter(99)
        memory["plan"] = plan
        config = run_config(tmp_path / plan, cache, memory=memory, training=training)
        losses = train(config, observer, machine=SmallMachine(2 << 30)).losses
        return losses, [each for each in observer.events if isinstance(each, MemoryPlanned)]

    # The embedded base is so small that only "smallest" plans anything.
    resident, none = run("fastest")
    with given_back():
        swapped, (plan,) = run("smallest")
    assert not none
    assert plan.rows[0].blocks_to_swap > 0
    assert plan.rows[0].seconds > 0
    assert swapped == pytest.approx(resident, rel=2e-2)


def test_blocks_keep_their_activations_where_the_first_step_leaves_room(tmp_path, cache):
    def run(name, **more):
        memory = {"device": "cuda", "gradient_checkpointing": True, **more}
        training = {"steps": 3, "precision": "fp32"}
        observer = CancelAfter(99)
        found = train(
            run_config(tmp_path / name, cache, memory=memory, training=training), observer
        )
        notes = [each.message for each in observer.events if isinstance(each, Warned)]
        return found.losses, [each for each in notes if "blocks keep their activations" in each]

    # The embedded base is so small that nothing is planned.
    all_again, none = run("again", plan="off")
    assert not none
    with given_back():
        kept, (note,) = run("kept")
    assert "5 blocks keep" in note
    assert kept == all_again
