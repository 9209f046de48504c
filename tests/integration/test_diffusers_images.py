"""Diffusers' pipelines draw with an exported file what they draw with our adapter attached."""

import re
from pathlib import Path

import diffusers
import pytest
import torch
from packaging.version import Version

from tests.fixtures.flux_base import make_flux_pipeline
from tests.fixtures.qwen_base import make_qwen_base, open_qwen_pipeline
from tests.fixtures.strong_states import strengthen
from tests.fixtures.z_image_base import make_z_image_pipeline
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.registry import get_family
from trainer_core.types import AdapterState

SIZE = 64
TOLERANCE = 1e-4
NAME = "adapter.safetensors"
READS_LOKR = Version(diffusers.__version__) >= Version("0.42.0")
ADAPTERS = {
    "lora": {"kind": "lora", "rank": 4, "alpha": 2.0},
    "lora of several ranks": {"kind": "lora", "rank": 4, "rank_pattern": {r".*\.to_q": 2}},
    "lora with DoRA": {"kind": "lora", "rank": 4, "dora": True, "dora_axis": "output"},
    "loha": {"kind": "loha", "rank": 2, "alpha": 1.0},
    "lokr": {"kind": "lokr", "rank": 2, "alpha": 1.0, "factor": 2},
    "lokr, whole": {"kind": "lokr", "factor": -1, "rank": 2, "full_matrix": True},
}
GUIDANCE = {"qwen_image": {"true_cfg_scale": 1.0}, "flux": {"guidance_scale": 3.5}}
GUIDANCE["z_image"] = {"guidance_scale": 0.0}


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    qwen = open_qwen_pipeline(make_qwen_base(tmp_path_factory.mktemp("qwen")), "generate")
    return {"qwen_image": qwen, "flux": make_flux_pipeline(), "z_image": make_z_image_pipeline()}


def draw(pipeline, family):
    return pipeline(
        prompt="a red circle",
        width=SIZE,
        height=SIZE,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(3),
        output_type="pt",
        **GUIDANCE[family],
    ).images


def drawn_from(file: Path, pipeline, family, kind):
    if kind == "lokr":
        # The pipelines' own method takes no key without "lora" in it; the model's reads LoKr.
        pipeline.transformer.load_lora_adapter(
            file.parent, weight_name=file.name, prefix="transformer"
        )
    else:
        pipeline.load_lora_weights(file.parent, weight_name=file.name)
    image = draw(pipeline, family)
    pipeline.transformer.unload_lora()
    return image


@pytest.mark.parametrize("family", GUIDANCE)
@pytest.mark.parametrize("case", ADAPTERS)
def test_pipeline_draws_the_same_image_with_the_exported_file(pipelines, family, case, tmp_path):
    options = ADAPTERS[case]
    if options["kind"] == "lokr" and not READS_LOKR:
        pytest.skip("Diffusers reads LoKr from 0.42 on")
    pipeline, facts = pipelines[family], get_family(family)
    before = draw(pipeline, family)
    transformer = pipeline.transformer
    adapter = attach(transformer, AdapterConfig(**options), facts.layers.presets["attention"])
    state = strengthen(transformer, adapter, 0.7)
    ours = draw(pipeline, family)
    adapter.detach()
    write_adapter(tmp_path / NAME, state, "diffusers", facts.layers.key_map, {})

    theirs = drawn_from(tmp_path / NAME, pipeline, family, options["kind"])
    assert (ours - before).abs().max() > 100 * TOLERANCE, "the adapter changes nothing"
    torch.testing.assert_close(theirs, ours, rtol=0, atol=TOLERANCE)
    assert torch.equal(draw(pipeline, family), before), "the adapter was not taken off"


@pytest.mark.parametrize("family", GUIDANCE)
def test_another_layers_factors_draw_another_image(pipelines, family, tmp_path):
    pipeline, facts = pipelines[family], get_family(family)
    adapter = attach(
        pipeline.transformer, AdapterConfig(**ADAPTERS["lora"]), facts.layers.presets["attention"]
    )
    state = strengthen(pipeline.transformer, adapter, 0.7)
    ours = draw(pipeline, family)
    adapter.detach()
    first, second = [name for name in state.layers if re.search(r"\.0\.att\w+\.to_[qk]$", name)][:2]
    swapped = {**state.layers, first: state.layers[second], second: state.layers[first]}
    write_adapter(
        tmp_path / NAME, AdapterState("lora", swapped), "diffusers", facts.layers.key_map, {}
    )
    theirs = drawn_from(tmp_path / NAME, pipeline, family, "lora")
    assert (theirs - ours).abs().max() > 10 * TOLERANCE
