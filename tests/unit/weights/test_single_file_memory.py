"""Loading a base never holds two copies of it, and one that is packed is nowhere dense."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.combinations import some
from tests.fixtures.native_files import flux_to_native, to_scaled

PROCESS = """
import sys, torch
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.weights.base_location import BaseLocation
from pathlib import Path

def load(path):
    if Path(path).is_dir():
        location = BaseLocation(Path(path), Path(path), "generate", 8, "", embedded=False)
    else:
        settings = BaseSection(path=path)
        location = locate_base(settings, get_family("flux"), False, needs_encoders=False)
    return get_family("flux").load_transformer(location, torch.bfloat16, "cpu", sys.argv[3])

def peak():
    # getrusage's peak would be that of the process that started this one.
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

load(sys.argv[1])  # everything is imported and has run once
before = peak()
model = load(sys.argv[2])
print(peak() - before, sum(p.numel() * p.element_size() for p in model.parameters()))
"""


def make_wide_flux(layers):
    """A width of four heads; 14 layers of each kind are about 120 million values."""
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        num_layers=layers,
        num_single_layers=layers,
        num_attention_heads=4,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        guidance_embeds=True,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    models = {"small": make_wide_flux(1), "large": make_wide_flux(14)}
    small, large = (flux_to_native(model.state_dict()) for model in models.values())
    save_file({k: v.to(torch.bfloat16) for k, v in small.items()}, folder / "small.safetensors")
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        path = folder / f"{name}.safetensors"
        save_file({k: v.to(dtype).contiguous() for k, v in large.items()}, path)
    save_file(to_scaled(large, "new")[0], folder / "scaled.safetensors")
    for name, model in models.items():
        model.to(torch.bfloat16).save_pretrained(folder / name / "transformer")
    return folder


def measure(paths, base_format="dense"):
    """Bytes that the process grew by at most, and those of the model."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *map(str, paths), base_format],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return map(int, done.stdout.split())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux' peak of memory")
@pytest.mark.parametrize("name", some(["fp32", "scaled"]))
def test_loading_takes_little_more_than_the_model(name, files):
    grown, kept = measure([files / "small.safetensors", files / f"{name}.safetensors"])
    assert kept > 150e6
    # On top comes what is read at a time: 64 MiB of the mapped file, and one tensor.
    assert grown / kept < 1.3


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux' peak of memory")
@pytest.mark.parametrize("base_format", some(["nf4"]))
def test_a_folder_that_is_packed_is_nowhere_dense(base_format, files):
    grown, kept = measure([files / "small", files / "large"], base_format)
    # 64 MiB of the mapped file and one tensor; the dense model alone has 370 MB.
    assert 100e6 < kept < 200e6
    assert grown < kept + 100e6
