"""Sampling on a base of which blocks are swapped: the same images, and nothing left behind."""

import gc

import pytest
import torch

from tests.fixtures.combinations import some
from tests.fixtures.flux_base import make_flux_base
from tests.fixtures.machines import SmallMachine
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters import attach
from trainer_core.config import RunConfig
from trainer_core.inference.pipeline import open_pipeline, sample_prompts
from trainer_core.offload.streamed_blocks import StreamedBlocks

PROMPTS = ["a red circle on a blue background", "a white cross on a green background"]
TEXTS = ["red", "white"]
FLUX = {"family": "flux", "prompts": TEXTS, "width": 32, "height": 32}
LARGE = {"width": 96, "height": 96}
"""Enough tokens for products in 8 bits."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swapped")
    make_flux_base(folder / "flux")
    return folder


def run_config(work, memory, family="qwen_image", **preview):
    base = {"base": {"path": str(work / "flux")}} if family == "flux" else {}
    return RunConfig.model_validate(
        {
            "family": family,
            **base,
            "cache": {"dir": str(work / "cache")},
            "training": {"precision": "fp32"},
            "memory": {"device": "cpu", "threads": 1, **memory},
            "preview": {"prompts": PROMPTS, "width": 64, "height": 64, "steps": 2, **preview},
        }
    )


@pytest.fixture(scope="module")
def adapter_file(work):
    """An adapter of random factors, large enough to change every image."""
    config = run_config(work, {})
    with open_pipeline(config, has_controls=False) as pipeline:
        family, transformer = pipeline.sampler.family, pipeline.sampler.transformer
        settings = config.adapter.model_copy(update={"kind": "lora", "rank": 2, "dora": True})
        adapter = attach(transformer, settings, presets=family.layers.presets)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        write_adapter(
            work / "adapter.safetensors", adapter.state(), "comfyui", family.layers.key_map, {}
        )
    return work / "adapter.safetensors"


def held():
    """How many swapped bases still have hooks."""
    gc.collect()
    return sum(isinstance(each, StreamedBlocks) and bool(each._hooks) for each in gc.get_objects())


WAYS = {
    "all": {"blocks_to_swap": 4},
    "one slot": {"blocks_to_swap": 3, "swap_slots": 1},
    "int8, 8 bit": {"blocks_to_swap": 4, "base_format": "int8", "compute": "8bit"},
    "nf4": {"blocks_to_swap": 2, "base_format": "nf4"},
}


@pytest.mark.parametrize("way", some(WAYS, "one slot", "int8, 8 bit"))
def test_images_are_those_of_a_resident_base(work, adapter_file, way):
    one = {"prompts": PROMPTS[:1], "guidance": 2.0, **LARGE}
    resident = {**WAYS[way], "blocks_to_swap": 0}
    wanted = list(sample_prompts(run_config(work, resident, **one), adapter_file))
    found = list(sample_prompts(run_config(work, WAYS[way], **one), adapter_file))
    assert all(map(torch.equal, found, wanted))
    assert held() == 0


def test_a_machine_with_too_little_memory_gets_swapped_blocks(work):
    wanted = list(sample_prompts(run_config(work, {"blocks_to_swap": 4}, **FLUX), None))
    with open_pipeline(run_config(work, {}, **FLUX), has_controls=False) as pipeline:
        assert pipeline.base.streamed is None
    machine = SmallMachine(0)
    config = run_config(work, {}, **FLUX)
    with open_pipeline(config, has_controls=False, machine=machine) as pipeline:
        streamed = pipeline.base.streamed
        assert streamed is not None
        assert len(streamed._held) == 4
    assert streamed._hooks == streamed._held == []
    assert all(map(torch.equal, sample_prompts(config, None, machine=machine), wanted))
