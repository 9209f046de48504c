"""Settings that contradict each other are refused, and only those; the dataset's are beside it."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.optimizer import OptimizerName
from trainer_core.config.optimizer_facts import UNREAD
from trainer_core.config.problems import check_config, contradictions
from trainer_core.errors import ConfigError

NAMES = get_args(OptimizerName)
FREE = "adamw_schedule_free"
HUBER = {"kind": "huber"}
TRAIN = {"train": True}
HELD = {"validation": {"share": 0.1}}
_PLACE = "training.text_encoder"


def training(**values: Any) -> dict[str, Any]:
    return {"training": values}


def loss(**values: Any) -> dict[str, Any]:
    return training(loss=values)


def optimizer(values: Any, **others: Any) -> dict[str, Any]:
    return {"training": {"optimizer": values, **others.pop("training", {})}, **others}


def encoder(values: Any, **others: Any) -> dict[str, Any]:
    return {"training": {"text_encoder": values, **others.pop("training", {})}, **others}


def problems(values):
    return contradictions(RunConfig.model_validate(values))


CONTRADICTIONS = [
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
    (loss(huber_delta=0.2), "training.loss.huber_delta"),
    (loss(kind="mae", huber_delta=0.2), "training.loss.huber_delta"),
    (loss(huber_schedule="sigma"), "training.loss.huber_schedule"),
    (loss(**HUBER, huber_schedule="sigma", huber_delta=1.0), "huber_delta is 1.0"),
    (loss(**HUBER, huber_schedule="sigma", huber_delta=3.0), "huber_delta is 3.0"),
    (loss(snr_gamma=4.0), "training.loss.snr_gamma"),
    (loss(weighting="cosmap", snr_gamma=4.0), "weighting is cosmap"),
    (loss(**HUBER, weighting="learned"), "training.loss.weighting is learned"),
    (loss(kind="mae", weighting="learned"), "training.loss.kind is mae"),
    (loss(kind="mae", differential_guidance=3.0), "differential_guidance is 3.0"),
    (training(ema={"previews": "last"}), "training.ema has settings and its decay is 0"),
    (training(ema={"export": "both"}), "training.ema has settings and its decay is 0"),
    (
        training(ema={"export": "last", "post_hoc": True}),
        "training.ema has settings and its decay is 0",
    ),
    (
        training(ema={"decay": 0.9}, optimizer={"name": "adamw_schedule_free"}),
        "training.ema.decay",
    ),
    (
        training(ema={"post_hoc": True}, optimizer={"name": "prodigy_schedule_free"}),
        "training.ema.post_hoc",
    ),
    (
        {**training(max_weight_norm=0.5), "adapter": {"kind": "oft"}},
        "training.max_weight_norm",
    ),
    (
        {**training(max_weight_norm=0.5), "adapter": {"kind": "lora", "init": "pissa"}},
        "adapter.init",
    ),
    (
        {**training(max_weight_norm=0.5), "adapter": {"kind": "lora", "init": "olora"}},
        "adapter.init",
    ),
    (
        training(max_weight_norm=0.5, optimizer={"name": FREE}),
        "training.max_weight_norm",
    ),
    ({"adapter": {"kind": "oft", "rank": 4, "dropout": 0.1}}, "adapter.dropout"),
    (encoder({"rank": 4}), f"{_PLACE}.rank is 4 and {_PLACE}.train is false"),
    (
        encoder({"learning_rate": 1e-5}),
        f"{_PLACE}.learning_rate is 1e-05 and {_PLACE}.train is false",
    ),
    (
        encoder(TRAIN, training={"optimizer": {"name": "prodigy"}}),
        f"{_PLACE}.train is true and training.optimizer.name is prodigy",
    ),
    (
        encoder(
            {"train": True, "learning_rate": 1e-5},
            training={"optimizer": {"name": "prodigy_schedule_free"}},
        ),
        f"{_PLACE}.learning_rate is 1e-05 and training.optimizer.name is prodigy_schedule_free",
    ),
    (
        encoder(TRAIN, output={"layouts": ["comfyui", "peft"]}),
        f"{_PLACE}.train is true and output.layouts has peft",
    ),
    (
        encoder(TRAIN, adapter={"kind": "lora", "dora": True, "dora_axis": "output"}),
        f"{_PLACE}.train is true and adapter.dora_axis is output",
    ),
    (
        encoder(TRAIN, output={"layouts": ["lycoris"]}),
        f"{_PLACE}.train is true and output.layouts has lycoris",
    ),
    (optimizer({"rate_pattern": {"(": 2.0}}), "rate_pattern"),
    (optimizer({"rate_pattern": {"a{99999999999}": 2.0}}), "rate_pattern"),
    (optimizer({"rate_pattern": {"a": -2.0}}), "rate_pattern"),
    (optimizer({"rate_pattern": {"a": 0.0}}), "rate_pattern"),
    (optimizer({"decay_pattern": {"(": 2.0}}), "decay_pattern"),
    (optimizer({"decay_pattern": {"a": -0.5}}), "decay_pattern"),
    (optimizer({"decay_pattern": {"a": 2.0}, "weight_decay": 0.0}), "decay_pattern"),
    (optimizer({"lora_plus_ratio": 4.0}), "lora_plus_ratio"),
    (optimizer({"magnitude_ratio": 0.5}), "magnitude_ratio"),
    (optimizer({"name": "prodigy", "learning_rate": 1e-4}), "learning_rate is 0.0001"),
    (optimizer({"name": "prodigy_schedule_free", "learning_rate": 1e-3}), "learning_rate is 0.001"),
    (optimizer({"name": "prodigy", "rate_pattern": {"a": 2.0}}), "rate_pattern"),
    (
        optimizer({"name": "prodigy", "lora_plus_ratio": 2.0}, adapter={"kind": "lora"}),
        "lora_plus_ratio",
    ),
    (
        optimizer(
            {"name": "prodigy", "magnitude_ratio": 2.0}, adapter={"kind": "lora", "dora": True}
        ),
        "magnitude_ratio",
    ),
    (
        optimizer({"name": FREE}, training={"schedule": {"name": "cosine"}}),
        "training.schedule.name",
    ),
    (optimizer({"name": FREE}, training={"ema": {"decay": 0.9}}), "training.ema.decay"),
    (optimizer({"name": FREE, "beta1": 0.0}), "beta1"),
    *((optimizer({"name": name, key: 0.5}), key) for name, keys in UNREAD.items() for key in keys),
    ({"training": {"early_stop": 3}}, "training.early_stop"),
    (
        {"training": {"early_stop": 3}, "dataset": {"path": "x", "folders": [{"path": "a"}]}},
        "nothing is held out",
    ),
    ({"training": {"keep_every": 300}}, "training.keep_every"),
    ({"training": {"keep_every": 100, "checkpoint_every": 0}}, "training.checkpoint_every"),
]


@pytest.mark.parametrize(("values", "named"), CONTRADICTIONS)
def test_contradiction_is_named(values, named):
    (problem,) = problems(values)
    assert named in problem.found
    assert problem.expected
    assert problem.remedy
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
        loss(**HUBER, huber_delta=0.2, huber_schedule="sigma"),
        loss(**HUBER, huber_delta=3.0),
        loss(**HUBER, differential_guidance=3.0, weighting="cosmap"),
        loss(kind="mae", weighting="sigma_sqrt", noise_offset=0.1),
        loss(weighting="min_snr", snr_gamma=1.0),
        loss(weighting="learned", differential_guidance=2.0),
        loss(weighting="logit_normal"),
        {"training": {"noises_per_latent": 4}},
        training(ema={"decay": 0.9, "previews": "last", "export": "both"}),
        training(ema={"post_hoc": True}),
        {**training(max_weight_norm=0.5), "adapter": {"kind": "lora", "init": "eva"}},
        {**training(ema={"decay": 0.9}), "adapter": {"kind": "oft", "rank": 4}},
        encoder({}),
        encoder({"train": True, "learning_rate": 1e-5, "rank": 4}),
        encoder({"train": True, "learning_rate": 0.1}, training={"optimizer": {"name": "came"}}),
        encoder(TRAIN, output={"layouts": ["comfyui", "kohya", "diffusers"]}),
        encoder(TRAIN, training={"optimizer": {"name": "prodigy_schedule_free"}}),
        *(optimizer({"name": name}) for name in NAMES),
        optimizer({"lora_plus_ratio": 4.0}, adapter={"kind": "lora"}),
        optimizer({"magnitude_ratio": 0.5}, adapter={"kind": "lora", "dora": True}),
        optimizer({"rate_pattern": {r".*\.to_q": 0.5}, "decay_pattern": {r".*\.to_k": 0.0}}),
        optimizer({"name": "prodigy_schedule_free", "rate_pattern": {"a": 2.0}}),
        optimizer({"name": FREE}, training={"schedule": {"warmup_steps": 5}}),
        optimizer({"name": "prodigy", "learning_rate": 0.5}),
        {"training": {"early_stop": 3}, "dataset": HELD},
        {
            "training": {"early_stop": 3},
            "dataset": {"path": "x", "folders": [{"path": "a", "role": "validation"}]},
        },
        {"training": {"keep_every": 500}},
        {"training": {"keep_every": 30, "checkpoint_every": 10}},
        {"training": {"checkpoint_minutes": 5.0, "checkpoint_every": 0}},
        {"resume": "best"},
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
