"""Blocks that stay in the base's file: the bits of any other master, and no RAM for them."""

import contextlib
from pathlib import Path

import pytest
import torch

from tests.fixtures.flux_files import write_folder, write_native
from tests.fixtures.native_files import locate_file, make_native_flux
from tests.fixtures.swapped_blocks import CPU, swap
from trainer_core.config import MemorySection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.offload.host_weights import MappedMaster, mapped_pages
from trainer_core.offload.load_base import load_base
from trainer_core.offload.machine import Machine

FAMILY = get_family("flux")
pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux' maps")


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
