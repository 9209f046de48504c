"""Whole runs on a base in fewer bits: resumed, exported, and gone on with in another format."""

import json
import shutil

import pytest
import torch
from runs import CancelAfter, metrics, run_config, tensors

from trainer_core.adapter_files.verify.load_proof import prove
from trainer_core.bases.base_weights import base_shapes, open_base
from trainer_core.bases.locate import locate_base
from trainer_core.commands.doctor import run_report
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.inference.pipeline import sample_prompts
from trainer_core.tensors.device_tables import _KEPT
from trainer_core.training import train

PREVIEW = {"prompts": ["a red circle on a green background"], "width": 64, "height": 64, "steps": 2}


def settings(name, kind="lokr", **training):
    return {
        "memory": {"base_format": name, "gradient_checkpointing": kind == "lora"},
        "adapter": {"kind": kind, "dropout": 0.0 if kind == "oft" else 0.1},
        "training": {"steps": 3, "gradient_accumulation_steps": 1, **training},
        "preview": PREVIEW,
    }


@pytest.mark.parametrize(
    ("name", "kind", "precision"),
    [
        pytest.param("int8", "lora", "fp32", marks=pytest.mark.exhaustive),
        pytest.param("fp8", "loha", "fp32", marks=pytest.mark.exhaustive),
        ("nf4", "lokr", "fp32"),
        pytest.param("nf4", "lokr", "bf16", marks=pytest.mark.exhaustive),
        pytest.param("fp8", "oft", "bf16", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_is_resumed_bit_for_bit_and_its_file_is_proven(
    tmp_path, cache, name, kind, precision
):
    own = settings(name, kind, precision=precision)
    whole = train(run_config(tmp_path / "a", cache, **own))
    stopped = train(run_config(tmp_path / "b", cache, **own), CancelAfter(2))
    assert (stopped.status, stopped.step) == ("cancelled", 2)
    config = run_config(tmp_path / "b", cache, **own, resume="latest")
    resumed = train(config)
    assert not _KEPT, "the tables of nf4 have to be given back"
    assert metrics(whole.folder) == metrics(resumed.folder)
    first, second = (tensors(each.adapters[0]) for each in (whole, resumed))
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    shapes = base_shapes(open_base("embedded"))
    proof = prove(resumed.adapters[0], get_family("qwen_image").layers.key_map, shapes)
    assert list(proof.problems()) == []
    (image,) = sample_prompts(config, resumed.adapters[0])
    (without,) = sample_prompts(config, None)
    assert image.isfinite().all()
    assert not torch.equal(image, without)


def test_doctor_says_that_a_quantized_base_keeps_its_format(tmp_path, cache):
    qwen = get_family("qwen_image")
    base = locate_base(BaseSection(), qwen, has_controls=False).folder
    copied = shutil.copytree(base, tmp_path / "base")
    path = copied / "transformer" / "config.json"
    noted = {"quantization_config": {"quant_method": "torchao"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | noted))
    own = {**settings("nf4"), "base": {"path": str(copied)}}
    _, problems = run_report(run_config(tmp_path, cache, **own))
    assert any(p.startswith("memory: memory.base_format is nf4, and") for p in problems)
