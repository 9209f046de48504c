"""A simulated step needs what a real one needs, and a few blocks tell of all."""

import copy
import dataclasses
import mmap
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel
from fixtures.small_trainer import small_plan, small_trainer
from torch.utils.flop_counter import FlopCounterMode

from tests.fixtures.full_size import full_size_transformer
from tests.fixtures.tables import table
from trainer_core.adapter_files.factors.outlines import outlines_of
from trainer_core.adapter_files.factors.put_on_base import BaseAdapterFile, put_on_base
from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, RunConfig
from trainer_core.families.registry import get_family
from trainer_core.offload.block_selection import checkpointed_block_numbers, repeated_blocks
from trainer_core.offload.checkpointed_blocks import CheckpointedBlocks
from trainer_core.offload.host_inputs import HostArena, HostInputs
from trainer_core.offload.model_bytes import base_bytes, cast_base, pack_blocks
from trainer_core.offload.step_profile import Work
from trainer_core.offload.transfer import Transfer
from trainer_core.quantization.formats import FORMATS
from trainer_core.training.memory.short_base import StepInputs
from trainer_core.training.memory.simulated_bytes import LiveBytes, Marks, Phase
from trainer_core.training.memory.step_simulation import StepSimulation
from trainer_core.training.optimizers import make_optimizer
from trainer_core.training.step.micro_batch import MicroBatchLoss
from trainer_core.training.step.token_routing import TokenRouting
from trainer_core.types import AdapterState, Batch

CPU = torch.device("cpu")
QWEN: dict[str, Any] = {"num_layers": 3, "attention_head_dim": 128, "num_attention_heads": 2}
FLUX: dict[str, Any] = {"num_layers": 2, "num_single_layers": 3, "pooled_projection_dim": 48} | {
    name: QWEN[name] for name in ("attention_head_dim", "num_attention_heads")
}
IMAGE, TEXT = (16, 24, 16), 20


def make_model(family, device="cpu", **sizes):
    with torch.device(device):
        if family == "flux":
            return FluxTransformer2DModel(joint_attention_dim=32, **(FLUX | sizes))
        return QwenImageTransformer2DModel(joint_attention_dim=32, **(QWEN | sizes))


def make_config(family="qwen_image", **sections):
    return RunConfig.model_validate({"family": family, **sections})


def real_peak(config, dtype, stored=None, beside=()):
    """Peak of the second of two real steps of the real loop, beside the base's weights."""
    family, training = get_family(config.family), config.training
    model = cast_base(make_model(config.family), dtype).requires_grad_(False)
    if stored is not None:
        pack_blocks(model, family.layers.repeated_blocks, stored)
    family.layers.prepare(model)
    live = LiveBytes()
    weights = live.hold([*model.parameters(), *model.buffers()])
    live.hold(put_on_base(model, family.layers.key_map, beside, merge=False).tensors())
    blocks = repeated_blocks(model, family.layers.repeated_blocks)
    in_ram = config.memory.checkpoint_inputs == "ram"
    inputs = HostInputs(HostArena(), Transfer(), worth=1) if in_ram else None
    chosen = set(checkpointed_block_numbers(config.memory, len(blocks)))
    if chosen:
        calls = CheckpointedBlocks(dict(enumerate(blocks)), chosen, inputs)
        family.layers.enable_checkpointing(model, calls)
    adapter = attach(
        model,
        config.adapter,
        presets=family.layers.presets,
        unused=family.layers.unused(model),
        shared=family.layers.shared_inputs,
    ).train()
    live.hold([*adapter.parameters(), *adapter.frozen_tensors().values()])
    settings = training.optimizer
    shapes = family.text.conditioning_shapes(model.config, TEXT)
    count = training.batch_size

    def load(step, micro):
        texts = ({n: torch.randn(s, dtype=dtype) for n, s in shapes.items()} for _ in range(count))
        return Batch(
            ("a",) * count, tuple(range(count)), torch.randn(count, *IMAGE), (), tuple(texts)
        )

    def predict(*args):
        return family.prediction.predict(model, *args, guidance=1.0)

    if training.routing.share < 1:
        predict = TokenRouting(model, family, training.routing, 0).routed(predict)
    compute = MicroBatchLoss(
        load, lambda step, micro: None, predict, lambda batch, noise: 0.5, 0, (0, 1), CPU
    )
    trainer = small_trainer(
        RunConfig(training=training),
        lambda step, micro: [compute(step, micro)],
        make_optimizer(settings, parameter_groups(adapter, settings)),
        small_plan(training, samples=training.batch_size * training.gradient_accumulation_steps),
    )
    with live:
        trainer.train_step(1)
        live.peaks.clear()
        live.begin("second")
        trainer.train_step(2)
    return live.peaks["second"] - weights - counted_ram(inputs)


def counted_ram(inputs):
    """What `LiveBytes` counts of the RAM: as it is asked for, and the whole pages within."""
    slots = [slot for each in inputs.arena._slots.values() for slot in each] if inputs else []
    return sum(2 * (slot.bytes.numel() + mmap.PAGESIZE) for slot in slots)


def simulation(config, dtype, sizes=None, **options):
    model = make_model(config.family, "meta", **(sizes or {}))
    inputs = StepInputs((IMAGE,), TEXT, dtype, fused=False)
    return StepSimulation(model, get_family(config.family), config, inputs, worth=1, **options)


def simulate(config, dtype, stored=None, sizes=None, **options):
    return simulation(config, dtype, sizes, **options).step(stored=stored)


ADAPTERS = table(__file__, "simulated adapters")
CASES = [
    *(("qwen_image", each, at % 2 == 0, "float32") for at, each in enumerate(ADAPTERS)),
    ("qwen_image", "exact", False, "float32"),
    ("qwen_image", "lora", True, "bfloat16"),
    ("flux", "lokr", False, "float32"),
    ("flux", "loha", True, "float32"),
    ("flux", "lora with DoRA", True, "bfloat16"),
]
QUICK = {("qwen_image", "lora", True, "bfloat16")}


def marked(cases, quick):
    return [c if c in quick else pytest.param(*c, marks=pytest.mark.exhaustive) for c in cases]


def agree(found, real):
    return found.adapter + found.activations == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize(("family", "adapter", "checkpointing", "dtype"), marked(CASES, QUICK))
def test_the_peak_is_that_of_a_real_step(family, adapter, checkpointing, dtype):
    config = make_config(
        family, adapter=ADAPTERS[adapter], memory={"gradient_checkpointing": checkpointing}
    )
    dtype = getattr(torch, dtype)
    assert agree(simulate(config, dtype), real_peak(config, dtype))


@pytest.mark.exhaustive
def test_batches_micro_batches_and_stored_weights_count():
    stored = FORMATS["int8"]
    config = make_config(training={"batch_size": 2, "gradient_accumulation_steps": 2})
    found = simulate(config, torch.float32, stored)
    assert agree(found, real_peak(config, torch.float32, stored))


@pytest.mark.exhaustive
def test_moments_in_8_bits_count_to_the_byte():
    adapter, optimizer = {"kind": "lora", "rank": 32, "dora": True}, {"name": "adamw8bit"}
    config = make_config(adapter=adapter, training={"optimizer": optimizer})
    found = simulate(config, torch.float32)
    assert agree(found, real_peak(config, torch.float32))
    family, model = get_family("qwen_image"), make_model("qwen_image", "meta")
    unused = family.layers.unused(model)
    attached = attach(model, config.adapter, presets=family.layers.presets, unused=unused)
    expected = 0
    for name, each in attached.named_parameters():
        packed = each.numel() >= 4096 and not name.endswith("dora_scale")
        # Weight, gradient, a counter; the moments, whose every 256 numbers have a scale.
        expected += 8 * each.numel() + 4
        expected += each.numel() // 256 * 2 * 260 if packed else 8 * each.numel()
    assert found.adapter == expected


CHOICES = [
    ("flux", 0, "device"),
    ("flux", 2, "device"),
    ("flux", 2, "ram"),
    ("flux", None, "ram"),
    ("qwen_image", 2, "ram"),
]


@pytest.mark.parametrize(("family", "count", "place"), marked(CHOICES, {("flux", 2, "ram")}))
def test_the_peak_follows_the_checkpointed_blocks_and_where_their_inputs_wait(family, count, place):
    memory = {"blocks_to_checkpoint": count, "checkpoint_inputs": place}
    config = make_config(family, adapter=ADAPTERS["lokr"], memory=memory)
    assert agree(simulate(config, torch.float32), real_peak(config, torch.float32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("family", ["qwen_image", "flux"])
def test_tokens_that_pass_blocks_by_do_not_count(family, checkpointing):
    training = {"routing": {"share": 0.5, "first": 1, "last": 1}}
    sections = {"memory": {"gradient_checkpointing": checkpointing}}
    config = make_config(family, training=training, **sections)
    found, every = simulate(config, torch.float32), make_config(family, **sections)
    assert agree(found, real_peak(config, torch.float32))
    assert found.work.flops < simulate(every, torch.float32).work.flops


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["qwen_image", "flux"])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("share", [1, 0.5])
def test_few_blocks_tell_of_all(family, checkpointing, share):
    sizes = {"num_layers": 7} | ({"num_single_layers": 7} if family == "flux" else {})
    routing = {"share": share, "first": 1, "last": 1} if share < 1 else {}
    memory = {"gradient_checkpointing": checkpointing}
    config = make_config(family, memory=memory, training={"routing": routing})
    found = simulate(config, torch.float32, sizes=sizes)
    assert found == simulate(config, torch.float32, sizes=sizes, whole=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["qwen_image", "flux"])
def test_the_whole_published_base_is_simulated_and_left_as_it_is(family):
    model, known = full_size_transformer(family), get_family(family)
    before = list(model.parameters())
    inputs = StepInputs(((16, 128, 128),), 256, torch.bfloat16)
    config = make_config(family, adapter={"rank": 16})
    found = StepSimulation(model, known, config, inputs).step()
    assert all(x is y for x, y in zip(model.parameters(), before, strict=True))
    blocks = sum(len(model.get_submodule(name)) for name in known.layers.repeated_blocks)
    # A block's input is kept: 4096 image tokens, of 3072 numbers of 2 bytes.
    assert found.activations > blocks * 4096 * 3072 * 2
    unused = known.layers.unused(model)
    adapter = attach(model, config.adapter, presets=known.layers.presets, unused=unused)
    trained = sum(each.numel() for each in adapter.parameters())
    adapter.detach()
    # Weight, gradient and two moments, and AdamW's counters.
    assert 0 <= found.adapter - 16 * trained < 1e-4 * found.adapter
    # Each token passes each matrix of a stream three times, a multiplication with its addition.
    assert 0.9e14 < found.work.flops < 3e14


@pytest.mark.parametrize(("name", "shape"), [("addmm", ()), ("baddbmm", (2,))])
def test_products_that_add_in_place_count_as_those_that_do_not(name, shape):
    y, a, b = (torch.zeros(*shape, *size) for size in ((3, 5), (3, 4), (4, 5)))
    with FlopCounterMode(display=False) as counted:
        getattr(torch, name)(y, a, b)
    for work, into in (
        (getattr(y, f"{name}_"), {}),
        (partial(getattr(torch, name), y), {"out": y}),
    ):
        with LiveBytes() as live:
            work(a, b, **into)
        assert live.flops == counted.get_total_flops() > 0
        assert live.work.launches == 1


WHOLE = torch.zeros(8, dtype=torch.uint8)
MADE = {
    "sum": (lambda x: x + x, Work(moved=3 * 4 * 8, launches=1)),
    "in place": (lambda x: x.add_(1), Work(moved=2 * 4 * 8, launches=1)),
    "into": (lambda x: torch.add(x, 1, out=torch.empty(8)), Work(moved=2 * 4 * 8, launches=1)),
    "narrow": (lambda x: x.bfloat16(), Work(moved=(4 + 2) * 8, launches=1)),
    "mixed": (lambda x: x * WHOLE, Work(converted=(4 + 1 + 4) * 8, launches=1)),
}


@pytest.mark.parametrize(("work", "counted"), MADE.values(), ids=MADE)
def test_other_kernels_count_by_what_they_read_and_write(work, counted):
    x = torch.zeros(8)
    with LiveBytes() as live:
        work(x)
        x.view(2, 4).t(), torch.empty_like(x)
    assert live.work == counted


@pytest.mark.parametrize(
    ("family", "stored"), [*(("qwen_image", each) for each in (None, *FORMATS)), ("flux", "nf4")]
)
def test_bytes_of_a_base_are_exact(family, stored):
    lists = get_family(family).layers.repeated_blocks
    whole = make_model(family, "meta")
    found = base_bytes(whole, lists, torch.bfloat16, FORMATS.get(stored))
    packed = cast_base(copy.deepcopy(whole), torch.bfloat16)
    if stored is not None:
        pack_blocks(packed, lists, FORMATS[stored])

    def size(module):
        tensors = [*module.parameters(), *module.buffers()]
        return sum(each.numel() * each.element_size() for each in tensors)

    blocks = [block for name in lists for block in packed.get_submodule(name)]
    assert found.blocks == tuple(map(size, blocks))
    assert found.total == size(packed)
    assert len(set(found.groups)) == len(lists)


BESIDE = {"lora": "int8", "loha": None, "oft": None, "lora with DoRA": "int8"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", BESIDE)
def test_adapters_of_the_base_are_counted(kind):
    stored = FORMATS.get(BESIDE[kind] or "")
    config = make_config(adapter=ADAPTERS["lora"])
    model = make_model("qwen_image", num_layers=3)
    options = AdapterConfig(**{**ADAPTERS[kind], "rank": 16})
    own = attach(model, options, presets=get_family("qwen_image").layers.presets)
    state = own.state()
    own.detach()
    real = BaseAdapterFile("base.adapters.0", "a", state, 1.0, "training")
    outline = dataclasses.replace(real, state=AdapterState(state.kind, outlines_of(state)))
    plain = simulate(config, torch.float32, stored)
    found = simulate(config, torch.float32, stored, beside=[outline])
    assert agree(found, real_peak(config, torch.float32, stored, [real]))
    assert found.adapter > plain.adapter + 1000
    assert not agree(plain, found.adapter + found.activations)


BYTES = 4 << 10


def note(marks, block, tensor):
    marks.note(Phase("", 0, block), LiveBytes(), (tensor,))


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
    marks.note(Phase(""), LiveBytes(), ())
    found = [marks.numbers(1)[Phase("inputs", 0, block)] for block in range(2 * gone)]
    assert found == [0] * gone + [BYTES] * gone
