"""Blocks are swapped, and brought back, between steps: the same bits, and never too much memory."""

from functools import partial

import pytest
import torch

from tests.fixtures.combinations import each_once, pairwise, rarely
from tests.fixtures.machines import CountingMachine
from tests.fixtures.swapped_blocks import BLOCKS, MAKERS, HesitantTransfer, Trained, place
from trainer_core.errors import RunError
from trainer_core.families.registry import get_family
from trainer_core.offload import host_weights, pinned_memory
from trainer_core.offload.block_selection import evenly_spread, fewest_swapped
from trainer_core.offload.host_weights import MappedMaster, PageableMaster, PinnedMaster
from trainer_core.offload.machine import Machine
from trainer_core.offload.model_bytes import pack_blocks
from trainer_core.quantization.formats import FORMATS

ADAPTERS = {
    "lora": {"kind": "lora"},
    "lora dora": {"kind": "lora", "dora": True},
    "lokr dora": {"kind": "lokr", "factor": -1, "dora": True},
    "loha dora output": {"kind": "loha", "dora": True, "dora_axis": "output"},
    "oft": {"kind": "oft"},
}
COURSES = {
    "from none": (0, {1: 2, 2: 5, 3: 3}),
    "to none": (4, {1: 2, 2: 0}),
    "there and back": (0, {1: 5, 2: 0, 3: 1}),
}
FORMS = ("dense", "int8", "nf4")


class Registry:
    """What CUDA does of pinning, where there is no CUDA: it knows which pages are locked."""

    def __init__(self):
        self.locked, self._most = {}, 10**9

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        if sum(self.locked.values()) + size > self._most:
            return 2
        assert address not in self.locked
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.locked[address]
        return 0


@pytest.fixture
def registry(monkeypatch):
    found = Registry()
    monkeypatch.setattr(pinned_memory, "_runtime", lambda: found)
    # A run would tell of what is refused here.
    monkeypatch.setattr(pinned_memory, "refused_pins", set())
    return found


MASTERS = {
    "pageable": PageableMaster,
    "mapped": lambda: MappedMaster(required=False),
    "pinned": lambda: PinnedMaster(True, Machine()),
}


AXES = (BLOCKS, ADAPTERS, COURSES, MASTERS, FORMS)


@pytest.mark.parametrize(
    ("family", "name", "course", "master", "form"),
    [*each_once(*AXES)[:2], *rarely(pairwise(*AXES))],
)
def test_a_run_whose_plan_changes_learns_what_it_would_have_learned(
    registry, family, name, course, master, form
):
    options = {"steps": 4}
    if form != "dense":
        lists = get_family(family).layers.repeated_blocks
        options["prepare"] = partial(pack_blocks, lists=lists, stored=FORMATS[form])
    resident = Trained(family, ADAPTERS[name], **options)
    count, changes = COURSES[course]
    changed = Trained(
        family,
        ADAPTERS[name],
        count,
        transfer=HesitantTransfer(),
        master=MASTERS[master](),
        changes=changes,
        **options,
    )
    assert changed.equals(resident)
    assert changed.placed.count == list(changes.values())[-1]
    changed.placed.close()
    assert not any(each._forward_pre_hooks for each in changed.transformer.modules())
    assert not any(hasattr(each, "weight_identity") for each in changed.transformer.parameters())
    assert registry.locked == {}


def test_what_the_host_refuses_halfway_leaves_a_base_that_computes():
    class Refusing(PageableMaster):
        left = 2

        def hold(self, spans):
            if not self.left:
                raise RunError("no", "room", "more")
            self.left -= 1
            return super().hold(spans)

    master, transformer = Refusing(), MAKERS["qwen_image"]()
    before = {name: each.clone() for name, each in transformer.state_dict().items()}
    placed = place(transformer, get_family("qwen_image"), 1, master=master)
    with pytest.raises(RunError):
        placed.swap(4)
    assert placed.count == 1
    master.left = 9
    placed.swap(5)
    placed.swap(2)
    placed.close()
    after = transformer.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_pinned_memory_follows_the_blocks_and_is_given_back(registry):
    machine = CountingMachine(10**9)
    placed = place(
        MAKERS["flux"](), get_family("flux"), 4, master=PinnedMaster(True, machine), machine=machine
    )
    sizes = [host_weights.block_size(spans) for spans in placed.every.values()]
    for count in (4, 2, 5, 0, 3):
        placed.swap(count)
        assert machine.pinned == sum(sizes[each] for each in evenly_spread(count, 5))
        assert len(registry.locked) == count
    placed.close()
    assert (machine.pinned, registry.locked) == (0, {})


@pytest.mark.parametrize("required", [True, False])
def test_a_system_that_pins_no_more(registry, required):
    transformer, machine = MAKERS["qwen_image"](), CountingMachine(10**9)
    placed = place(transformer, get_family("qwen_image"), 0, machine=machine)
    size = host_weights.block_size(next(iter(placed.every.values())))
    registry._most = 2 * size + 3 * 4096
    placed = place(
        transformer,
        get_family("qwen_image"),
        1,
        master=PinnedMaster(required, machine),
        machine=machine,
    )
    if required:
        with pytest.raises(RunError, match="cannot be pinned"):
            placed.swap(5)
        assert placed.count < 5
    else:
        placed.swap(5)
        assert placed.count == 5
    assert len(registry.locked) == 2
    placed.close()
    assert (machine.pinned, registry.locked) == (0, {})


def test_too_little_ram_is_refused_before_a_block_moves():
    class Full(Machine):
        def free_ram(self):
            return 1000

    placed = place(MAKERS["flux"](), get_family("flux"), 0, machine=Full())
    with pytest.raises(RunError, match=r"3 swapped blocks take .* GiB more of RAM"):
        placed.swap(3)
    assert placed.count == 0


def steady(blocks, slots):
    """Blocks of 100 bytes each."""
    return lambda count: 100 * (blocks - count + min(slots, count))


@pytest.mark.parametrize(
    ("count", "room", "reserve", "wanted"),
    [
        (5, 0, 0, 5),
        (5, 99, 0, 5),
        (5, 100, 0, 4),
        (5, 250, 0, 3),
        (5, 250, 100, 4),
        (5, 300, 0, 0),  # the two slots are not needed any more
        (2, 0, 0, 0),
        (5, -500, 0, 5),
        (0, 900, 0, 0),
        (10, 450, 50, 6),
    ],
)
def test_blocks_come_back_as_far_as_there_is_room(count, room, reserve, wanted):
    assert fewest_swapped(count, room, steady(10, 2), reserve) == wanted
