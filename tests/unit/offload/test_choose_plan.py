"""What a base's files let a plan choose from, against the loaded base; and what is chosen."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.fixtures.flux_files import write_folder, write_native
from tests.fixtures.native_files import flux_to_native, make_native_flux, to_scaled
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, MemorySection
from trainer_core.errors import BaseModelError, ConfigError, RunError
from trainer_core.families.registry import get_family
from trainer_core.offload.block_selection import repeated_blocks
from trainer_core.offload.choose_plan import choose_plan, guessed_step_sizes, kept_format
from trainer_core.offload.empty_base import empty_base
from trainer_core.offload.host_weights import MappedMaster, block_spans
from trainer_core.offload.possible_plans import Budget

FLUX = get_family("flux")
BF16 = torch.bfloat16
MIB = 1 << 20


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """The same FLUX.1 as users have it."""
    folder = tmp_path_factory.mktemp("bases")
    model = make_native_flux()
    state = {name: each.to(BF16) for name, each in model.state_dict().items()}
    eight, notes = to_scaled(flux_to_native(model.state_dict()), "header")
    save_file({k: v.contiguous() for k, v in eight.items()}, folder / "eight.safetensors", notes)
    places = {
        "wide folder": write_folder(folder / "wide", model),
        "folder": write_folder(folder / "folder", make_native_flux().to(BF16)),
        "file": write_native(folder / "flux1-dev.safetensors", state),
        "fp8 file": folder / "eight.safetensors",
    }
    found = {}
    for name, place in places.items():
        section = BaseSection(path=str(place))
        location = locate_base(section, FLUX, False, needs_encoders=False)
        found[name] = empty_base(location, FLUX)
    return found


@pytest.mark.parametrize("form", ["dense", "file", "fp8", "nf4"])
@pytest.mark.parametrize("name", ["wide folder", "folder", "file", "fp8 file"])
def test_bytes_and_what_stays_in_the_file_are_those_of_the_loaded_base(bases, name, form):
    base = bases[name]
    kept = kept_format(base, form, BF16)
    loaded = FLUX.load_transformer(base.location, BF16, "cpu", form, mapped=True)
    weights = [*loaded.parameters(), *loaded.buffers()]
    assert kept.base.total == sum(each.nbytes for each in weights)
    blocks = repeated_blocks(loaded, FLUX.layers.repeated_blocks)
    sizes = [sum(each.nbytes for each in [*b.parameters(), *b.buffers()]) for b in blocks]
    assert kept.base.blocks == tuple(sizes)
    if Path("/proc/self/maps").exists():
        try:
            held = [MappedMaster(required=True).hold(block_spans(each)) for each in blocks]
        except BaseModelError:
            assert not kept.in_file
            return
        assert kept.in_file
        mapped = sum(each.mapped.size for each in held if each.mapped is not None)
        assert kept.base.total - mapped >= kept.copied


FAST = {"link_bytes_per_s": 20e9, "flops_per_s": 1e12, "reserve": 0}
ROOM = Budget(1 << 40, 1 << 40, 1 << 40, **FAST)


def choose(base, budget, held=None, swappable=True, rest=MIB, **memory):
    section = MemorySection(**memory)
    sizes_of = guessed_step_sizes(rest, 10**12)
    return choose_plan(section, base, BF16, budget, sizes_of, swappable=swappable, held=held)


def total(base, form="dense"):
    return kept_format(base, form, BF16).base.total


def short_of(base):
    return replace(ROOM, device_free=total(base) + MIB - 1)


def test_what_is_open_is_chosen_and_what_is_set_is_kept(bases):
    base = bases["folder"]
    roomy = choose(base, ROOM).memory
    assert (roomy.base_format, roomy.blocks_to_swap, roomy.master) == ("dense", 0, "auto")
    swapped = choose(base, short_of(base), swap_slots=1).memory
    assert (swapped.base_format, swapped.master) == ("dense", "auto")
    assert swapped.blocks_to_swap
    set_all = {"base_format": "nf4", "blocks_to_swap": 3, "swap_slots": 1, "master": "pageable"}
    # Without a simulated step nobody knows what a block keeps: all are checkpointed.
    also = {"blocks_to_checkpoint": base.blocks, "checkpoint_inputs": "device"}
    assert choose(base, ROOM, **set_all).memory == MemorySection(**set_all, **also)
    packed = choose(base, short_of(base), swappable=False).memory
    assert (packed.base_format, packed.blocks_to_swap) == ("int8", 0)
    with pytest.raises(ConfigError, match=r"memory\.blocks_to_swap is 99"):
        choose(base, ROOM, blocks_to_swap=99)


def test_weights_stay_in_the_file_where_ram_is_too_small(bases):
    for name, form in (("folder", "dense"), ("fp8 file", "file")):
        base = bases[name]
        largest = max(kept_format(base, form, BF16).base.blocks)
        asked = {"blocks_to_swap": 4, "base_format": form}
        little = replace(ROOM, ram_free=2 * largest, pinned_limit=2 * largest)
        assert choose(base, ROOM, **asked).plans[0].master == "pinned"
        mapped = choose(base, little, **asked)
        assert (mapped.plans[0].master, mapped.memory.master) == ("file", "file")


def test_a_format_is_held_as_long_as_it_fits(bases):
    base = bases["folder"]
    assert choose(base, ROOM, held="nf4").memory.base_format == "nf4"
    assert choose(base, ROOM, held="nf4", base_format="fp8").memory.base_format == "fp8"
    small = replace(ROOM, device_free=total(base, "nf4") + MIB, ram_free=0, pinned_limit=0)
    assert choose(base, small, held="fp8").memory.base_format == "nf4"


@settings(max_examples=12, deadline=None)
@given(
    free=st.integers(0, 3 * MIB),
    ram=st.integers(0, 4 * MIB),
    aim=st.sampled_from(["auto", "fastest", "smallest"]),
    slots=st.integers(1, 3),
)
def test_a_plan_that_is_set_is_the_plan_that_was_chosen(bases, free, ram, aim, slots):
    budget = replace(ROOM, device_free=free, ram_free=ram, pinned_limit=ram // 2)
    try:
        first = choose(bases["folder"], budget, rest=MIB // 4, plan=aim, swap_slots=slots)
    except RunError:
        return
    plan = first.plans[0]
    assert plan.fits(budget)
    assert first.memory.swap_slots == slots
    again = choose_plan(
        first.memory, bases["folder"], BF16, budget, guessed_step_sizes(MIB // 4, 10**12)
    )
    found = again.plans[0]
    assert (found.base_format, found.blocks_to_swap) == (plan.base_format, plan.blocks_to_swap)
    assert (found.device, found.seconds) == (plan.device, plan.seconds)
