"""What is known of devices without asking them."""

from types import SimpleNamespace

import pytest
import torch

from trainer_core.device import has_own_attention, rated_speed, speed_of

# NVIDIA's data sheets: multiprocessors, boost clock in kHz, dense bf16 FLOPs summed in float32.
SOLD = {
    "RTX 3060": ((8, 6), 28, 1_777_000, 25.5e12),
    "RTX 3090": ((8, 6), 82, 1_695_000, 71e12),
    "RTX 4070": ((8, 9), 46, 2_475_000, 58.3e12),
    "RTX 4090": ((8, 9), 128, 2_520_000, 165.2e12),
    "RTX 5090": ((12, 0), 170, 2_407_000, 209.5e12),
    # In float32, as they compute products in bf16.
    "GTX 1080 Ti": ((6, 1), 28, 1_582_000, 11.3e12),
    "V100": ((7, 0), 80, 1_530_000, 15.7e12),
    "RTX 2080 Ti": ((7, 5), 68, 1_545_000, 13.4e12),
    "A100": ((8, 0), 108, 1_410_000, 312e12),
    "H100": ((9, 0), 132, 1_830_000, 989e12),
}


@pytest.mark.parametrize("name", SOLD)
def test_a_gpu_is_as_fast_as_it_is_sold(name):
    (major, minor), count, clock, expected = SOLD[name]
    known = SimpleNamespace(major=major, minor=minor, multi_processor_count=count, clock_rate=clock)
    assert speed_of(known) == pytest.approx(expected, rel=0.02)
    del known.clock_rate
    assert speed_of(known) == pytest.approx(expected, rel=0.35)
    assert rated_speed(torch.device("cpu")) is None


@pytest.mark.parametrize(("device", "own"), [("cpu", True), ("xpu:0", False), ("mps", False)])
def test_attention_of_torch_is_trusted_where_it_is_known_to_work(device, own):
    assert has_own_attention(torch.device(device)) == own
