"""Encoders that do not fit a device: the same bits, one part there at a time, nothing left."""

import gc
import weakref

import pytest
import torch
from PIL import Image

from tests.fixtures.flux_base import make_flux_base
from tests.fixtures.machines import SmallMachine
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, MemorySection
from trainer_core.data.cache.encoder_protocols import encode_texts
from trainer_core.families.registry import get_family
from trainer_core.inference.placed_encoders import PlacedEncoders

CPU = torch.device("cpu")
TEXT = "a red circle on a blue background"


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    """Family and variant to what loads its encoders, in bf16 as views into the files."""
    flux = make_flux_base(tmp_path_factory.mktemp("flux"))
    bases = {
        "qwen_image": BaseSection(),
        "qwen_image edit": BaseSection(variant="edit"),
        "flux": BaseSection(path=str(flux)),
    }

    def loader(name):
        family = get_family(name.split()[0])
        location = locate_base(bases[name], family, has_controls=name.endswith("edit"))
        return lambda: family.load_encoders(location, torch.bfloat16, "cpu")

    return {name: loader(name) for name in bases}


def size(models):
    held = {id(each): each for m in models for each in (*m.parameters(), *m.buffers())}
    return sum(each.nbytes for each in held.values())


def controls_of(name):
    return [Image.new("RGB", (64, 64), "red")] if name.endswith("edit") else []


@pytest.mark.parametrize(
    ("name", "slots"), [("qwen_image", 1), ("qwen_image edit", 2), ("flux", 1)]
)
def test_embeddings_are_those_of_resident_encoders(loaders, name, slots):
    resident, controls = loaders[name](), controls_of(name)
    texts = [resident.encode_text(text, controls) for text in (TEXT, "", TEXT)]
    pixels = torch.rand(1, 3, 64, 64) * 2 - 1
    latents = resident.encode_image(pixels)
    needed = size(resident.text_models)
    for free in (needed, needed - 1, 0):
        memory = MemorySection(swap_slots=slots)
        placed = PlacedEncoders(loaders[name], CPU, memory, SmallMachine(free))
        for text, wanted in zip((TEXT, "", TEXT), texts, strict=True):
            found = placed.encode_text(text, controls)
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        at_once = placed.encode_texts([TEXT, ""], [controls, controls])
        wanted_at_once = encode_texts(resident, [TEXT, ""], [controls, controls])
        for found, wanted in zip(at_once, wanted_at_once, strict=True):
            assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        assert (placed.streamed is None) == (free == needed)
        assert torch.equal(placed.encode_image(pixels), latents)
        placed.close()


def test_one_part_is_there_at_a_time_and_nothing_after_close(loaders):
    seen = []

    def load():
        seen.append(loaders["flux"]())
        return seen[-1]

    placed = PlacedEncoders(load, CPU, MemorySection(), SmallMachine(0))
    placed.encode_image(torch.zeros(1, 3, 32, 32))
    vae = weakref.ref(seen.pop().vae.model)
    placed.encode_image(torch.zeros(1, 3, 32, 32))
    assert (placed.part, seen) == ("image", []), "loaded once"
    placed.encode_text(TEXT)
    text = weakref.ref(seen.pop().text_models[1])
    gc.collect()
    assert (placed.part, vae()) == ("text", None)
    streamed = placed.streamed
    placed.close()
    gc.collect()
    assert (text(), placed.part, placed.streamed, streamed._hooks) == (None, "", None, [])


def test_an_exception_while_they_are_placed_leaves_nothing(loaders):
    def load():
        found = loaders["flux"]()
        found.text_encoder_2.encoder.block[0].requires_grad_(True)
        return found

    placed = PlacedEncoders(load, CPU, MemorySection(), SmallMachine(0))
    with pytest.raises(Exception, match="is trained"):
        placed.encode_text(TEXT)
    assert placed.part == ""
