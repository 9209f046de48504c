"""Plans: their bytes, their order, what a refusal says, and that more memory is never worse."""

import random
from dataclasses import replace

import pytest
import torch

from tests.fixtures.combinations import rarely
from tests.fixtures.full_size import full_size_transformer
from trainer_core.config import MemorySection
from trainer_core.errors import RunError
from trainer_core.families.registry import get_family
from trainer_core.offload.block_selection import evenly_spread
from trainer_core.offload.choose_plan import rank_plans
from trainer_core.offload.machine import Machine, machine_budget
from trainer_core.offload.model_bytes import BaseBytes, base_bytes
from trainer_core.offload.possible_plans import EITHER, Budget, FormatSizes, KeptFormat, StepSizes
from trainer_core.offload.step_profile import BlockTerms, StepProfile, Work
from trainer_core.quantization.formats import FORMATS

GIB = 1 << 30


def profile(
    blocks=10, least=2 * GIB, most=20 * GIB, flops=400 * 10**12, inputs=GIB // 10, batches=1
):
    """A step that takes ``most`` and computes 3/4 of ``flops`` where no block is checkpointed."""
    flops *= batches
    more, part = (most - least) // max(blocks, 1), flops // (4 * max(blocks, 1))
    terms = (
        BlockTerms(
            checkpointed=least - (blocks - 1 - number) * inputs,
            kept=least + (number + 1) * more,
            more=more,
            inputs=inputs,
            work=Work(part),
        )
        for number in range(blocks)
    )
    sides = {"outside": least // 8, "between": least // 2}
    return StepProfile(tuple(terms), **sides, work=Work(flops), micro_batches=batches)


def sizes(scale=1, batches=1, **formats):
    kept = formats or {"dense": 4 * GIB, "int8": 2 * GIB, "nf4": GIB}
    return StepSizes(
        {
            name: FormatSizes(
                KeptFormat(BaseBytes((block,) * 10, (0,) * 10, GIB), name == "dense"),
                profile(least=2 * GIB * scale, most=20 * GIB * scale, batches=batches),
            )
            for name, block in kept.items()
        },
        adapter=GIB,
    )


ROOMY = Budget(200 * GIB, 200 * GIB, 200 * GIB, 20e9, 100e12)


def wanted(**settings):
    return MemorySection().model_copy(update={"swap_slots": EITHER, **settings})


def best(budget, settings=None, of=None):
    return rank_plans(of or sizes(), settings or wanted(), budget)[0]


def test_what_fits_stays_on_the_device_as_it_is():
    all_of_them = wanted(blocks_to_checkpoint=10, checkpoint_inputs="device")
    plan = best(ROOMY, all_of_them)
    assert (plan.base_format, plan.blocks_to_swap, plan.master) == ("dense", 0, "none")
    assert (plan.device, plan.ram) == ((41 + 1 + 2) * GIB, 0)
    assert plan.seconds == plan.compute == 4.0
    exactly = replace(ROOMY, device_free=45 * GIB)
    assert best(exactly, all_of_them) == plan
    assert best(replace(exactly, device_free=45 * GIB - 1), all_of_them) != plan


def test_with_too_little_room_inputs_wait_in_ram():
    resident = wanted(base_format="dense", blocks_to_swap=0)
    plan = best(replace(ROOMY, device_free=(41 + 1 + 1 + 1) * GIB + GIB // 2), resident)
    assert (plan.checkpoint_inputs, plan.blocks_to_checkpoint) == ("ram", 10)
    assert plan.activations == 2 * GIB - 8 * (GIB // 10)
    assert plan.ram == plan.pinned == 10 * (GIB // 10)
    assert plan.transfer == pytest.approx(2 * plan.ram / 20e9)
    with pytest.raises(RunError) as caught:
        best(
            replace(ROOMY, device_free=44 * GIB),
            resident.model_copy(update={"checkpoint_inputs": "device", "master": "pinned"}),
        )
    assert "memory.blocks_to_swap to " in caught.value.remedy
    best(ROOMY, wanted(checkpoint_inputs="ram", blocks_to_swap=4))


def test_a_block_computes_beside_what_those_before_it_keep():
    first, second = (BlockTerms(each, each, more=30, inputs=2, work=Work(1)) for each in (10, 12))
    step = StepProfile((first, second), outside=5, between=4, work=Work(9, 8, 7, 6))
    assert step.activations({1}) == 30 + 12
    assert step.computed({1}) == Work(8, 8, 7, 6)


def test_a_step_takes_what_the_device_does_or_what_the_host_does():
    machine = replace(ROOMY, flops_per_s=4.0, attention_per_s=2.0, moved_per_s=8.0)
    assert machine.seconds(Work(8, 6, 4, 10**9)) == 2 + 3 + 0.5
    assert replace(machine, launch_seconds=0.5).seconds(Work(8, 6, 4, 20)) == 10
    assert replace(machine, converted_per_s=2.0).seconds(Work(converted=6)) == 3


def test_swapped_blocks_have_slots_and_are_sent_twice():
    asked = wanted(
        base_format="dense",
        blocks_to_swap=6,
        swap_slots=2,
        master="pinned",
        blocks_to_checkpoint=10,
    )
    plan = best(ROOMY, asked)
    assert (plan.weights, plan.ring, plan.ram) == (17 * GIB, 8 * GIB, 24 * GIB)
    assert plan.transfer == pytest.approx(2 * 4 * 4 * GIB / 20e9)
    assert plan.seconds == max(4.0, plan.transfer)
    single = best(ROOMY, asked.model_copy(update={"swap_slots": 1}))
    assert single.seconds == pytest.approx(4.0 + 2 * 5 * 4 * GIB / 20e9)
    assert single.ring == 4 * GIB
    mapped = best(ROOMY, asked.model_copy(update={"master": "file"}))
    assert mapped.ram == mapped.pinned == 8 * GIB
    assert mapped.transfer == pytest.approx(2 * 4 * 4 * GIB / 3e9)


def test_no_block_is_swapped_without_checkpointing():
    with pytest.raises(RunError) as caught:
        best(replace(ROOMY, device_free=30 * GIB), wanted(gradient_checkpointing=False))
    assert "memory.gradient_checkpointing to true" in caught.value.remedy
    assert best(ROOMY, wanted(gradient_checkpointing=False)).blocks_to_checkpoint == 0


@pytest.mark.parametrize(
    ("settings", "budget", "remedy"),
    [
        (wanted(blocks_to_swap=0, base_format="dense"), {}, "memory.blocks_to_swap to "),
        (
            wanted(blocks_to_swap=0, base_format="dense"),
            {"ram_free": 0, "pinned_limit": 0},
            "memory.base_format to ",
        ),
        (wanted(base_format="int8", master="file"), {}, "memory.master to pinned"),
        (
            wanted(base_format="dense", master="pinned"),
            {"ram_free": 9 * GIB},
            "memory.master to file",
        ),
        (wanted(), {"device_free": 3 * GIB}, "Lower dataset.resolution"),
    ],
)
def test_a_refusal_names_the_setting_that_would_fit(settings, budget, remedy):
    tight = replace(ROOMY, device_free=18 * GIB)
    with pytest.raises(RunError) as caught:
        best(replace(tight, **budget), settings)
    assert remedy in caught.value.remedy
    assert caught.value.expected


def walk(seed, steps):
    """Budgets, each with one number smaller than the one before, or larger."""
    source = random.Random(seed)
    budget = Budget(20 * GIB, 40 * GIB, 20 * GIB, 20e9, 50e12)
    for _ in range(steps):
        name = source.choice(["device_free", "ram_free", "pinned_limit"])
        value = int(getattr(budget, name) * source.uniform(0.7, 1.4)) + source.randrange(GIB)
        after = replace(budget, **{name: min(value, 60 * GIB)})
        yield budget, after, name
        budget = after


def first(known, settings, budget):
    try:
        return rank_plans(known, settings, budget)[0]
    except RunError:
        return None


@pytest.mark.parametrize("aim", ["auto", "fastest", "smallest"])
@pytest.mark.parametrize("seed", [0, *rarely([(1,), (2,)])])
def test_more_memory_is_never_slower_and_less_never_larger(aim, seed):
    measures = {"auto": "pace", "fastest": "seconds", "smallest": "device"}
    needs = {"device_free": "device", "ram_free": "ram", "pinned_limit": "pinned"}
    settings = wanted(plan=aim, blocks_to_checkpoint=None if seed else 10)
    plans = 0
    for before, after, name in walk(seed, 40):
        less, more = sorted((before, after), key=lambda each: getattr(each, name))
        small, large = first(sizes(), settings, less), first(sizes(), settings, more)
        if small is None:
            continue
        plans += 1
        assert large is not None
        assert getattr(large, measures[aim]) <= getattr(small, measures[aim])
        assert getattr(small, needs[name]) <= getattr(large, needs[name])
        assert small.fits(less)
    assert plans > 20


def test_a_plan_has_the_ram_that_loading_takes():
    """Of a base that its file has otherwise, all is in RAM before its blocks are pinned there."""
    asked = wanted(base_format="dense", blocks_to_swap=6, swap_slots=2)
    step = StepProfile((), GIB, 0, Work(10**12))
    for known, masters in (
        ({"in_file": True}, {"pinned": 24, "pageable": 32, "file": 8}),
        ({"in_file": True, "copied": GIB}, {"pinned": 25, "pageable": 32, "file": 8}),
        ({"copied": 41 * GIB}, {"pinned": 45, "pageable": 45}),
    ):
        dense = KeptFormat(BaseBytes((4 * GIB,) * 10, (0,) * 10, GIB), **known)
        of = StepSizes({"dense": FormatSizes(dense, step)}, GIB)
        found = {plan.master: plan.ram // GIB for plan in rank_plans(of, asked, ROOMY)}
        assert found == masters
    dense = replace(dense, copied_resident=41 * GIB)
    whole = StepSizes({"dense": FormatSizes(dense, step)}, GIB)
    assert best(ROOMY, wanted(blocks_to_swap=0), whole).ram == 41 * GIB


def test_this_machine_has_a_budget():
    found = machine_budget(Machine(), torch.device("cpu"), torch.float32)
    assert found.device_free > 0
    assert 0 < found.pinned_limit <= found.ram_free
    assert min(found.flops_per_s, found.attention_per_s, found.moved_per_s) > 1e6
    assert found.converted_per_s > 1e6
    assert found.link_bytes_per_s == float("inf")


@pytest.mark.parametrize("family", ["qwen_image", "flux"])
def test_a_plans_weights_are_those_of_the_published_base(family):
    model, lists = full_size_transformer(family), get_family(family).layers.repeated_blocks
    formats = {
        name: FormatSizes(
            KeptFormat(base_bytes(model, lists, torch.bfloat16, stored)), profile(0, 0, 0, 1, 0)
        )
        for name, stored in (("dense", None), *FORMATS.items())
    }
    known = StepSizes(formats, 0)
    asked = wanted(base_format="dense", checkpoint_inputs="device")
    whole = sum(each.numel() * 2 for each in model.parameters())
    blocks = [
        sum(each.numel() * 2 for each in block.parameters())
        for name in lists
        for block in model.get_submodule(name)
    ]
    for plan in rank_plans(known, asked, ROOMY):
        away = evenly_spread(plan.blocks_to_swap, len(blocks)) if plan.blocks_to_swap else []
        missing = sum(blocks[each] for each in away)
        assert plan.weights == whole - missing
        if plan.master == "pinned":
            assert plan.ram == missing
