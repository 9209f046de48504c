"""The estimate of a run's memory: its parts, what is said of it, and a measured peak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, MemorySection
from trainer_core.errors import ConfigError, RunError
from trainer_core.families.registry import get_family
from trainer_core.offload.empty_base import bytes_on_device, empty_base
from trainer_core.printable import gibibytes
from trainer_core.training.memory_estimate import check_memory

PROCESS = """
import gc, sys, torch
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel
from trainer_core.adapters import attach
from trainer_core.config import RunConfig
from trainer_core.families.registry import get_family
from trainer_core.training.step_simulation import StepInputs, StepSimulation

name, kind, dtype, checkpointing, pixels = sys.argv[1:]
dtype, checkpointing = getattr(torch, dtype), checkpointing == "True"
torch.set_num_threads(1)
settings = {"attention_head_dim": 128, "num_attention_heads": 2, "joint_attention_dim": 64}

def build():
    if name == "flux":
        return FluxTransformer2DModel(
            num_layers=2, num_single_layers=4, pooled_projection_dim=64, **settings
        )
    return QwenImageTransformer2DModel(num_layers=5, **settings)

family = get_family(name)
edge = int(pixels) // 8
memory = {"gradient_checkpointing": checkpointing}
adapter = {"kind": kind, "rank": 8}
config = RunConfig.model_validate({"family": name, "adapter": adapter, "memory": memory})
with torch.device("meta"):
    empty = build()
inputs = StepInputs(((16, edge, edge),), 128, dtype, fused=False)
simulated = StepSimulation(empty, family, config, inputs).step()
model = build().to(dtype).requires_grad_(False)
if checkpointing:
    family.enable_checkpointing(model)
unused = family.unused_layers(model)
adapter = attach(model, config.adapter, presets=family.presets, unused=unused)
adapter.train()

def step(edge, length):
    text = {"text_embeddings": torch.randn(length, 64), "pooled_text": torch.randn(64)}
    noisy = torch.randn(1, 16, edge, edge)
    velocity = family.predict(model, noisy, torch.tensor([0.5]), [text], [], 1.0)
    velocity.float().pow(2).mean().backward()

def status(field):
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024

step(8, 8)  # everything is imported, and gradients have their memory
gc.collect()
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins again
step(edge, 128)
print(status("VmHWM") - before, simulated.activations)
"""
# In bfloat16 the CPU's own buffers are as large as what a checkpointed step of this size keeps.
CASES = [
    pytest.param("flux", "lora", "bfloat16", False, marks=pytest.mark.exhaustive),
    pytest.param("flux", "lokr", "float32", True, marks=pytest.mark.exhaustive),
    pytest.param("qwen_image", "loha", "float32", False, marks=pytest.mark.exhaustive),
]


def measure(name, kind, dtype, checkpointing, pixels=512):
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, name, kind, dtype, str(checkpointing), str(pixels)],
        # Else freed memory would stay with the process, and count as used.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    peak, simulated = (int(word) for word in done.stdout.split())
    return peak / simulated


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' peak")
@pytest.mark.parametrize(("name", "kind", "dtype", "checkpointing"), CASES)
def test_the_processs_memory_grows_as_simulated(name, kind, dtype, checkpointing):
    # The process also has what the CPU's own kernels take for a moment, in bfloat16 most.
    assert 1 / 1.3 < measure(name, kind, dtype, checkpointing) < 1.5


def test_what_cannot_fit_is_refused_with_numbers_and_what_to_do():
    gib = 1 << 30
    estimate = {"base": 24 * gib, "adapter": gib, "activations": 2 * gib, "total": 27 * gib}
    device = torch.device("cpu")
    with pytest.raises(RunError) as error:
        check_memory(estimate, 10 * gib, device)
    assert "27.00 GiB on cpu" in error.value.found
    assert "base 24.00 GiB, adapter 1.00 GiB, activations 2.00 GiB" in error.value.found
    assert "10.00 GiB are free" in error.value.found
    assert "smaller base" in error.value.remedy


def test_what_may_not_fit_is_warned_of():
    estimate = {"base": 20, "adapter": 5, "activations": 10, "total": 35}
    device = torch.device("cpu")
    assert check_memory(estimate, 35, device) is None
    warning = check_memory(estimate, 34, device)
    assert warning is not None
    assert "gradient checkpointing" in warning
    assert check_memory(estimate, 25, device) is not None
    with pytest.raises(RunError):
        check_memory(estimate, 24, device)


def test_swapped_blocks_take_no_more_than_their_slots():
    family = get_family("qwen_image")
    location = locate_base(BaseSection(), family, has_controls=False)
    base = empty_base(location, family)
    block = sum(each.numel() for each in base.transformer.transformer_blocks[0].parameters())

    def size(**memory):
        return bytes_on_device(MemorySection(**memory), base, torch.float32)

    assert base.blocks == 5
    assert size() == size(blocks_to_swap=2) == 4 * base.parameters
    assert size(blocks_to_swap=4) == 4 * (base.parameters - 2 * block)
    assert size(blocks_to_swap=5, swap_slots=1) == 4 * (base.parameters - 4 * block)
    # What is kept in fewer bits leaves fewer, and so does the rest of it that is swapped.
    packed = size(base_format="int8")
    assert packed < 2 * base.parameters
    assert (packed - size(base_format="int8", blocks_to_swap=4)) % 2 == 0
    assert 0 < packed - size(base_format="int8", blocks_to_swap=4) < 4 * block
    with pytest.raises(ConfigError, match="the base has 5 blocks"):
        size(blocks_to_swap=6)


def test_sizes_read_well():
    assert gibibytes(3 << 29) == "1.50 GiB"
    assert gibibytes(1 << 20) == "1.0 MiB"
