"""Blocks that stay in the base's file: the bits of any other master, and no RAM for them."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.flux_files import write_folder, write_native
from tests.fixtures.native_files import flux_to_native, locate_file, make_native_flux
from tests.fixtures.swapped_blocks import CPU, swap
from trainer_core.config import MemorySection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.offload.host_weights import MappedMaster
from trainer_core.offload.load_base import load_base
from trainer_core.offload.machine import Machine
from trainer_core.offload.mapped_pages import mapped_pages

FAMILY = get_family("flux")
pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux' maps")

PROCESS = """
import contextlib, gc, sys, torch
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection, MemorySection
from trainer_core.device import release_memory
from trainer_core.families.registry import get_family
from trainer_core.offload.load_base import load_base
from trainer_core.offload.machine import Machine

torch.set_num_threads(1)
family, cpu = get_family("flux"), torch.device("cpu")

def train(path, master, blocks):
    location = locate_base(BaseSection(path=path), family, False, needs_encoders=False)
    memory = MemorySection(blocks_to_swap=blocks, master=master)
    with contextlib.ExitStack() as at_end:
        base = load_base(memory, family, location, torch.bfloat16, cpu, Machine(), at_end)
        model, send_rest = base.transformer, base.send_rest
        family.enable_checkpointing(model)
        adapter = attach(model, AdapterConfig(rank=2), presets=family.presets)
        send_rest()
        text = {"text_embeddings": torch.randn(8, 64), "pooled_text": torch.randn(64)}
        for _ in range(2):
            found = family.predict(
                model, torch.randn(1, 16, 8, 8), torch.tensor([0.5]), [text], [], 1.0
            )
            found.square().mean().backward()
        sizes = {}
        for name in family.repeated_blocks:
            block = model.get_submodule(name)[0]
            sizes[name] = sum(p.nbytes for p in block.parameters() if not p.requires_grad)
        return 2 * sum(sizes.values())

def status(field):
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024

small, large, master, blocks = sys.argv[1:]
train(small, master, 2)  # everything is imported and has run once
gc.collect()
begin = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
ring = train(large, master, int(blocks))
print(status("VmHWM") - begin, ring)
"""


@pytest.mark.parametrize("form", ["file", "folder"])
def test_blocks_are_views_into_the_file(tmp_path, form):
    model = make_native_flux()
    if form == "file":
        path = write_native(tmp_path / "flux1-dev.safetensors", model.state_dict())
    else:
        path = write_folder(tmp_path / "base", model)
    loaded = FAMILY.load_transformer(locate_file(path), torch.float32, "cpu", mapped=True)
    attention = loaded.transformer_blocks[0].attn
    views = [each.weight.detach() for each in (attention.to_q, attention.to_k, attention.to_v)]
    pages = mapped_pages(views)
    assert pages is not None
    assert len(pages.ranges) == 3
    before = [each.clone() for each in views]
    pages.forget()
    assert all(map(torch.equal, views, before))
    assert mapped_pages(before) == ((), {})
    streamed = swap(loaded, FAMILY, 4, master=MappedMaster(required=True))
    for number in range(4):
        streamed.need(number)
    streamed.close()
    wanted = make_native_flux().state_dict()
    assert all(torch.equal(each, wanted[name]) for name, each in loaded.state_dict().items())


@pytest.mark.parametrize("name", ["flux1-dev.sft", "flux1-dev.safetensors"])
def test_a_file_is_known_by_any_name_and_behind_a_link(tmp_path, name):
    path = tmp_path / name
    real = write_native(path, make_native_flux().state_dict())
    if path.suffix == ".safetensors":
        # As a hub's cache has it.
        path.symlink_to(real.rename(tmp_path / "0a1b2c3d"))
    loaded = FAMILY.load_transformer(locate_file(path), torch.float32, CPU, mapped=True)
    streamed = swap(loaded, FAMILY, 4, master=MappedMaster(required=True))
    streamed.need(0)
    streamed.close()


def test_a_file_in_another_number_format_is_refused(tmp_path):
    path = write_native(tmp_path / "flux1-dev.safetensors", make_native_flux().state_dict())
    loaded = FAMILY.load_transformer(locate_file(path), torch.bfloat16, CPU, mapped=True)
    with pytest.raises(BaseModelError, match="not in the base's file as they are needed"):
        swap(loaded, FAMILY, 4, master=MappedMaster(required=True))


def test_a_file_may_go_but_not_change_while_it_is_read(tmp_path):
    state = make_native_flux().state_dict()
    path = write_native(tmp_path / "flux1-dev.safetensors", state)
    loaded = FAMILY.load_transformer(locate_file(path), torch.float32, CPU, mapped=True)
    streamed = swap(loaded, FAMILY, 4, slots=1, master=MappedMaster(required=True))
    for number in (0, 1):
        streamed.need(number)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(BaseModelError, match="was written to while blocks are read from it"):
        streamed.need(0)
    path.unlink()
    streamed.need(0)
    weight = loaded.transformer_blocks[0].attn.to_q.weight
    assert torch.equal(weight, state["transformer_blocks.0.attn.to_q.weight"])
    streamed.close()


def load_placed(path, count):
    memory = MemorySection(blocks_to_swap=count, master="file")
    with contextlib.ExitStack() as at_end:
        placed = load_base(memory, FAMILY, locate_file(path), torch.float32, CPU, Machine(), at_end)
        return placed, at_end.pop_all()


def test_blocks_leave_to_the_file_and_come_back_from_it(tmp_path):
    state = make_native_flux().state_dict()
    path = write_native(tmp_path / "flux1-dev.safetensors", state)
    placed, at_end = load_placed(path, 1)
    with at_end:
        for count in (3, 4, 1, 0, 2):
            placed.swap(count)
            away = placed.streamed._away.values()
            assert all(each.flat is None and each.mapped is not None for each in away)
            assert len(away) == count
        found = placed.transformer.state_dict()
        assert all(torch.equal(each, state[name]) for name, each in found.items())
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(BaseModelError, match="was written to while blocks are read from it"):
            placed.swap(0)
    assert not any(each._forward_pre_hooks for each in placed.transformer.modules())


def write_wide(path, heads, layers):
    """A FLUX.1 in bfloat16; at 8 heads a block of each kind takes about 100 MB."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        num_layers=layers,
        num_single_layers=layers,
        num_attention_heads=heads,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        guidance_embeds=True,
    )
    native = flux_to_native(model.to(torch.bfloat16).state_dict())
    save_file({name: each.contiguous() for name, each in native.items()}, path)
    return path


def grown(folder, master, heads, layers):
    """Megabytes that a run takes at its peak, those of its ring, and those of the file."""
    small = write_wide(folder / "small.safetensors", 2, 1)
    large = write_wide(folder / "large.safetensors", heads, layers)
    arguments = [str(small), str(large), master, str(2 * layers)]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    peak, ring = (int(word) for word in done.stdout.split())
    return peak / 1e6, ring / 1e6, large.stat().st_size / 1e6


@pytest.mark.exhaustive
def test_a_large_base_takes_the_memory_of_its_ring(tmp_path):
    peak, ring, size = grown(tmp_path, "file", 8, 10)
    assert size > 1000
    # What lies outside of the blocks, the adapter and a step's activations come on top.
    assert peak < 1.2 * (ring + 150)
