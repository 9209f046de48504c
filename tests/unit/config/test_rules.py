"""Settings that contradict each other are refused, and only those."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import check_config, contradictions
from trainer_core.errors import ConfigError


def problems(values):
    return contradictions(RunConfig.model_validate(values))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"training": {"sigma": {"min": 0.5, "max": 0.5}}}, "training.sigma.min"),
        ({"training": {"sigma": {"min": 0.9, "max": 0.1}}}, "training.sigma.max"),
        ({"training": {"sigma": {"shift": 3.0}}}, "training.sigma.shift"),
        ({"training": {"sigma": {"density": "uniform", "mean": 1.0}}}, "training.sigma.mean"),
        ({"training": {"sigma": {"density": "mode", "std": 0.5}}}, "training.sigma.std"),
        ({"training": {"sigma": {"mode_scale": 0.5}}}, "training.sigma.mode_scale"),
        ({"training": {"sigma": {"density": "auto", "mean": 0.5}}}, "training.sigma.mean"),
        ({"training": {"sigma": {"alpha": 2.0}}}, "training.sigma.alpha"),
        ({"training": {"sigma": {"density": "cosmap", "beta": 2.0}}}, "training.sigma.beta"),
        ({"training": {"schedule": {"min_ratio": 0.1}}}, "training.schedule.min_ratio"),
        ({"training": {"schedule": {"cycles": 2}}}, "training.schedule.cycles"),
        ({"training": {"schedule": {"name": "rex", "power": 3.0}}}, "training.schedule.power"),
        (
            {"training": {"schedule": {"name": "linear", "decay_share": 0.5}}},
            "training.schedule.decay_share",
        ),
        (
            {"training": {"schedule": {"warmup_steps": 5, "warmup_share": 0.1}}},
            "training.schedule.warmup_share",
        ),
        ({"adapter": {"kind": "lora", "factor": 4}}, "adapter.factor"),
        ({"adapter": {"kind": "loha", "full_matrix": True}}, "adapter.full_matrix"),
        ({"adapter": {"kind": "lora", "decompose_both": True}}, "adapter.decompose_both"),
        ({"adapter": {"kind": "lora", "unbalanced": True}}, "adapter.unbalanced"),
        ({"adapter": {"kind": "lokr", "init": "gaussian"}}, "adapter.init"),
        ({"adapter": {"kind": "loha", "init": "orthogonal"}}, "adapter.init"),
        ({"adapter": {"kind": "lokr", "init": "pissa"}}, "adapter.init"),
        ({"adapter": {"kind": "lora", "init": "olora", "start_from": "a"}}, "adapter.start_from"),
        ({"adapter": {"kind": "lora", "init": "eva", "start_from": "a"}}, "adapter.start_from"),
        ({"adapter": {"targets": ["("]}}, "adapter.targets"),
        ({"adapter": {"include": ["["]}}, "adapter.include"),
        ({"adapter": {"exclude": ["*"]}}, "adapter.exclude"),
        ({"adapter": {"rank_pattern": {"a": 0}}}, "adapter.rank_pattern"),
        ({"adapter": {"alpha_pattern": {"a": 0.0}}}, "adapter.alpha_pattern"),
        ({"adapter": {"targets": ["a{99999999999}"]}}, "adapter.targets"),
        ({"adapter": {"include": ["(" * 5000 + ")" * 5000]}}, "adapter.include"),
        ({"adapter": {"exclude": ["x" * 1001]}}, "adapter.exclude"),
        ({"adapter": {"targets": [r"(\w+\.?)+!"]}}, "adapter.targets"),
        ({"adapter": {"targets": ["(.|.)" * 50]}}, "adapter.targets"),
        ({"adapter": {"targets": [r".*.*.*.*!"]}}, "adapter.targets"),
        ({"adapter": {"targets": [r"((.*a)?b)*"]}}, "adapter.targets"),
        ({"adapter": {"kind": "lokr", "factor": 0}}, "adapter.factor"),
        ({"adapter": {"full_matrix": True, "decompose_both": True}}, "adapter.decompose_both"),
        ({"adapter": {"full_matrix": True, "rslora": True}}, "adapter.rslora"),
        ({"preview": {"every": 5}}, "preview.prompts"),
        ({"preview": {"prompts": ["a", "b"], "controls": [["x.png"]]}}, "preview.controls"),
        (
            {"base": {"variant": "generate"}, "preview": {"prompts": ["a"], "controls": [["x"]]}},
            "base.variant",
        ),
        ({"base": {"variant": "edit"}, "preview": {"prompts": ["a"]}}, "preview.controls"),
        (
            {"base": {"variant": "edit"}, "preview": {"prompts": ["a"], "controls": [["x", "y"]]}},
            "preview.controls",
        ),
        ({"base": {"variant": "edit_plus"}, "preview": {"prompts": ["a"]}}, "preview.controls"),
        ({"base": {"variant": "layered"}, "preview": {"prompts": ["a"]}}, "preview.controls"),
        ({"base": {"variant": "generate"}, "dataset": {"layout": "paired"}}, "dataset.layout"),
        ({"base": {"variant": "generate"}, "dataset": {"control_area": 2048}}, "control_area"),
        ({"output": {"name": "con"}}, "output.name"),
        ({"output": {"name": "NUL.txt"}}, "output.name"),
        ({"output": {"name": "Lpt1"}}, "output.name"),
        ({"output": {"name": "name."}}, "output.name"),
        ({"output": {"name": "name "}}, "output.name"),
        ({"output": {"layouts": []}}, "output.layouts"),
        (
            {"memory": {"blocks_to_swap": 1, "gradient_checkpointing": False}},
            "memory.gradient_checkpointing",
        ),
        (
            {"memory": {"blocks_to_swap": 1}, "adapter": {"exact_delta": True}},
            "adapter.exact_delta",
        ),
        (
            {"memory": {"blocks_to_checkpoint": 1, "gradient_checkpointing": False}},
            "memory.gradient_checkpointing is false",
        ),
        (
            {"memory": {"blocks_to_checkpoint": 1, "blocks_to_swap": 2}},
            "memory.blocks_to_checkpoint is 1 and memory.blocks_to_swap is 2",
        ),
        (
            {"memory": {"checkpoint_inputs": "ram", "gradient_checkpointing": False}},
            "no block is checkpointed",
        ),
        (
            {"memory": {"checkpoint_inputs": "ram", "blocks_to_checkpoint": 0}},
            "no block is checkpointed",
        ),
        ({"memory": {"compute": "8bit"}}, "memory.base_format is auto"),
        ({"memory": {"compute": "8bit", "base_format": "nf4"}}, "memory.base_format is nf4"),
        ({"output": {"layouts": ["comfyui", "comfyui"]}}, "output.layouts"),
    ],
)
def test_contradiction_is_named(values, named):
    found = problems(values)
    assert len(found) == 1
    assert named in found[0].found
    assert found[0].expected
    assert found[0].remedy
    with pytest.raises(ConfigError):
        check_config(RunConfig.model_validate(values))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"training": {"steps": 5, "schedule": {"warmup_steps": 6}}},
        {"training": {"sigma": {"density": "shifted", "shift": 3.0, "mean": 1.0}}},
        {"training": {"schedule": {"name": "cosine", "min_ratio": 0.1}}},
        {"training": {"schedule": {"name": "rex", "min_ratio": 0.1, "warmup_share": 0.1}}},
        {"training": {"schedule": {"name": "cosine_restarts", "cycles": 2}}},
        {"training": {"schedule": {"name": "polynomial", "power": 1.0}}},
        {"training": {"schedule": {"name": "warmup_stable_decay", "decay_share": 0.1}}},
        {"training": {"schedule": {"name": "one_cycle", "warmup_share": 0.4}}},
        {"training": {"sigma": {"density": "beta", "alpha": 2.0, "beta": 3.0, "shift": 2.0}}},
        {"memory": {"blocks_to_swap": 0, "gradient_checkpointing": False}},
        {"memory": {"blocks_to_checkpoint": 0, "gradient_checkpointing": False}},
        {"memory": {"blocks_to_checkpoint": 2, "blocks_to_swap": 2, "checkpoint_inputs": "ram"}},
        {"memory": {"compute": "8bit", "base_format": "file"}},
        {"adapter": {"kind": "lokr", "factor": 4, "full_matrix": True, "unbalanced": True}},
        {"adapter": {"kind": "lokr", "factor": 1, "rslora": True, "decompose_both": True}},
        {"adapter": {"kind": "lora", "factor": -1}},
        {"adapter": {"kind": "lora", "init": "orthogonal"}},
        {"adapter": {"kind": "lora", "init": "gaussian", "start_from": "first.safetensors"}},
        {"adapter": {"kind": "lora", "init": "pissa", "dora": True}},
        {"adapter": {"kind": "loha", "init": "default", "start_from": "first.safetensors"}},
        {"adapter": {"targets": "default", "exclude": [r".*\.norm.*"]}},
        {"adapter": {"targets": [r"(single_)?transformer_blocks\.\d+\.attn\.to_[qkv]"]}},
        {"adapter": {"targets": [r".*\.attn.*\.to_(q|k|v|out\.0).*", r"(?!x).*", r"a{2,3}\-[^]]"]}},
        {"preview": {"every": 5, "prompts": ["a"]}},
        {"base": {"variant": "edit"}, "preview": {"prompts": ["a"], "controls": [["x"]]}},
        {"base": {"variant": "edit_plus"}, "preview": {"prompts": ["a"], "controls": [["x", "y"]]}},
        {"output": {"name": "console"}},
        {"output": {"name": "com10"}},
        {"output": {"layouts": ["comfyui", "diffusers"]}},
    ],
)
def test_settings_that_agree_pass(values):
    config = RunConfig.model_validate(values)
    assert contradictions(config) == []
    check_config(config)


@pytest.mark.parametrize(
    "density", ["uniform", "shifted", "mode", "content", "style", "beta", "cosmap", "auto"]
)
def test_a_shift_fits_every_density_but_the_plain_logit_normal(density):
    assert problems({"training": {"sigma": {"density": density, "shift": 3.0}}}) == []
