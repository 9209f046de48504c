"""Run files of other trainers: which program, which settings, and what is said of the rest."""

from __future__ import annotations

import json

import pytest
import yaml
from fixtures import foreign_files as files
from PIL import Image

from scripts.build_other_trainers import MARK, PAGE, tables
from trainer_core.cli import main
from trainer_core.config.run import RunConfig, find_setting
from trainer_core.errors import InputError
from trainer_core.families.run_files import load_config
from trainer_core.foreign_runs import Beside, command_document, in_reading_order, read_foreign
from trainer_core.foreign_runs.documents import parse_document
from trainer_core.foreign_runs.registry import PROGRAMS
from trainer_core.foreign_runs.rules import Maps

FILES = {
    "ai.yaml": (files.AI_TOOLKIT, "ai-toolkit"),
    "lokr.yaml": (files.AI_TOOLKIT_LOKR, "ai-toolkit"),
    "flux.yaml": (files.AI_TOOLKIT_FLUX, "ai-toolkit"),
    "ai.json": (files.AI_TOOLKIT_JSON, "ai-toolkit"),
    "slider.yaml": (files.AI_TOOLKIT_SLIDER, "ai-toolkit"),
    "old_slider.yaml": (files.AI_TOOLKIT_SLIDER_OLD, "ai-toolkit"),
    "command.sh": (files.MUSUBI_COMMAND, "musubi-tuner"),
    "training.toml": (files.MUSUBI_TOML, "musubi-tuner"),
    "datasets.toml": (files.MUSUBI_DATASETS, "musubi-tuner"),
    "sigma.txt": (files.MUSUBI_SIGMA, "musubi-tuner"),
    "one.json": (files.ONE_TRAINER, "OneTrainer"),
    "one_lokr.json": (files.ONE_TRAINER_LOKR, "OneTrainer"),
    "one_beta.json": (files.ONE_TRAINER_BETA, "OneTrainer"),
    "one_shift.json": (files.ONE_TRAINER_SHIFT, "OneTrainer"),
    "tsiendragon.yaml": (files.QWEN_FINETUNE, "qwen-image-finetune"),
    "old.yaml": (files.QWEN_FINETUNE_OLD, "qwen-image-finetune"),
    "fly.yaml": (files.FLYMYAI, "FlyMyAI"),
    "fly_edit.yaml": (files.FLYMYAI_EDIT, "FlyMyAI"),
}
NO_FAMILY = {"training.toml", "datasets.toml"}

SAID = {
    "ai.yaml": {
        "family": "qwen_image",
        "base.path": "Qwen/Qwen-Image",
        "base.variant": "generate",
        "adapter.kind": "lora",
        "adapter.rank": 24,
        "adapter.alpha": 12.0,
        "adapter.targets": "musubi",
        "output.name": "paper_boats",
        "output.dtype": "bf16",
        "training.checkpoint_every": 200,
        "training.keep_checkpoints": 6,
        "training.steps": 1800,
        "training.batch_size": 2,
        "training.gradient_accumulation_steps": 3,
        "training.precision": "bf16",
        "training.optimizer.name": "adamw8bit",
        "training.optimizer.learning_rate": 2e-4,
        "training.optimizer.weight_decay": 1e-4,
        "training.optimizer.eps": 1e-6,
        "training.sigma.density": "logit_normal",
        "training.ema.decay": 0.98,
        "dataset.path": "photos/boats",
        "dataset.resolution": 1024,
        "dataset.more_resolutions": [768, 512],
        "dataset.caption_dropout": 0.05,
        "dataset.caption_extension": ".txt",
        "dataset.missing_caption": "empty",
        "dataset.trigger_word": "p4per",
        "dataset.folders": [
            {
                "path": "photos/sea",
                "role": "regularization",
                "weight": 0.5,
                "resolution": 512,
                "caption_dropout": 0.0,
                "more_resolutions": [],
                "num_repeats": 1,
            }
        ],
        "memory.base_format": "fp8",
        "preview.every": 150,
        "preview.prompts": ["p4per on a lake", "a harbour"],
        "preview.width": 896,
        "preview.guidance": 3.5,
        "preview.steps": 22,
        "preview.negative_prompt": "blurry",
        "preview.seed": 7,
    },
    "lokr.yaml": {
        "adapter.kind": "lokr",
        "adapter.full_matrix": True,
        "adapter.factor": 8,
        "adapter.rank": None,
        "base.variant": "edit_plus",
        "training.optimizer.name": "prodigy",
        "training.optimizer.learning_rate": 1.0,
        "training.optimizer.weight_decay": 0.0,
        "training.precision": "fp32",
        "training.sigma.density": "uniform",
        "training.schedule.name": "cosine",
        "training.schedule.min_ratio": 0.1,
        # Without a trigger word there is nothing that the class word could stand for.
        "dataset.preservation.kind": None,
        "dataset.preservation.share": 0.5,
        "dataset.preservation.class_word": None,
        "training.steps": 1000,
        "dataset.resolution": 512,
        "training.checkpoint_every": 1000,
        "output.dtype": "fp16",
    },
    "flux.yaml": {
        "family": "flux",
        "adapter.rank": 8,
        "adapter.alpha": 1.0,
        "training.sigma.density": "style",
        "training.sigma.max": 0.9,
        "training.loss.kind": "mae",
        "training.loss.weighting": "min_snr",
        "training.loss.snr_gamma": 4.0,
        "training.schedule.name": "constant",
        "training.schedule.warmup_steps": 40,
        "dataset.captions.shuffle": 8,
        "dataset.captions.keep": 2,
        "dataset.mask.source": "alpha",
        "preview.every": 0,
    },
    "ai.json": {
        "family": "z_image",
        "adapter.targets": "all_linear",
        "training.sigma.density": "shifted",
        "training.sigma.std": 1.81,
    },
    "slider.yaml": {
        "family": "z_image",
        "dataset.slider.positive": "a very old person",
        "dataset.slider.negative": "a very young person",
        "dataset.slider.neutral": ["a person"],
        "dataset.slider.strength": 3.0,
        "dataset.preservation.prompts": ["a cat"],
        "dataset.preservation.share": 0.2,
        "dataset.resolution": 768,
        "dataset.path": None,
        "dataset.trigger_word": None,
        "dataset.caption_dropout": None,
        "training.steps": 500,
    },
    "old_slider.yaml": {
        "family": "flux",
        "dataset.slider.positive": "much detail",
        "dataset.slider.negative": "blurry",
        "dataset.slider.neutral": ["a man", "a dog"],
        "dataset.resolution": 512,
        "adapter.rank": 8,
        "adapter.alpha": 4.0,
    },
    "command.sh": {
        "family": "qwen_image",
        "base.variant": "edit_plus",
        "base.path": "models/qwen.safetensors",
        "adapter.rank": 32,
        "adapter.alpha": 1.0,
        "adapter.init": "lycoris",
        "adapter.rank_dropout": 0.1,
        "adapter.targets": "musubi",
        "training.optimizer.name": "adamw8bit",
        "training.optimizer.learning_rate": 4e-5,
        "training.optimizer.weight_decay": 0.1,
        "training.optimizer.beta2": 0.98,
        "training.optimizer.lora_plus_ratio": 4.0,
        "training.sigma.density": "shifted",
        "training.sigma.shift": 2.5,
        "training.steps": 1200,
        "training.checkpoint_every": 100,
        "training.keep_checkpoints": 3,
        "training.precision": "bf16",
        "memory.blocks_to_swap": 12,
        "memory.base_format": "fp8",
        "seed": 11,
        "output.name": "boats",
    },
    "training.toml": {
        "adapter.kind": "lokr",
        "adapter.factor": 4,
        "adapter.alpha": 6.0,
        "training.optimizer.name": "came",
        "training.sigma.density": "logit_normal",
        "training.sigma.mean": 2.0,
        "training.sigma.std": 1.0,
        "training.schedule.name": "cosine_restarts",
        "training.schedule.cycles": 4,
        "training.schedule.warmup_share": 0.05,
        "training.steps": 1600,
        "memory.gradient_checkpointing": False,
    },
    "datasets.toml": {
        "dataset.path": "/data/cats",
        "dataset.resolution": 723,
        "dataset.num_repeats": 3,
        "dataset.batch_size": 2,
        "cache.dir": "/data/cache",
        "dataset.folders": [
            {"path": "/data/dogs", "role": "train", "resolution": 768, "num_repeats": 1}
        ],
    },
    "sigma.txt": {
        "family": "z_image",
        "training.sigma.density": "shifted",
        "training.sigma.mean": -0.5,
        "training.sigma.std": 0.8,
        "training.sigma.shift": 3.0,
        "training.sigma.min": 0.1,
        "training.optimizer.name": "lion",
        "training.optimizer.learning_rate": 2e-6,
        "training.optimizer.weight_decay": 0.0,
        "training.schedule.name": "polynomial",
        "training.schedule.power": 3.0,
        "adapter.rank": 4,
    },
    "one.json": {
        "family": "qwen_image",
        "adapter.rank": 20,
        "adapter.alpha": 10.0,
        "adapter.targets": [".*attn.*", ".*img_mlp.*"],
        "training.sigma.density": "logit_normal",
        "training.sigma.mean": 0.3,
        "training.sigma.std": 1.2,
        "training.optimizer.name": "adamw8bit",
        "training.optimizer.weight_decay": 0.02,
        "training.schedule.name": "cosine",
        "training.schedule.warmup_share": 0.1,
        "training.ema.previews": "last",
        "dataset.path": "photos/boats",
        "dataset.num_repeats": 3,
        "dataset.resolution": 768,
        "dataset.more_resolutions": [512],
        "dataset.mask.source": "auto",
        "dataset.mask.normalize": False,
        "dataset.folders": [{"path": "photos/held", "role": "validation", "num_repeats": 1}],
        "preview.every": 100,
        "preview.prompts": ["a boat"],
        "preview.width": 640,
        "output.name": "boats",
        "output.dir": "models",
        "training.checkpoint_minutes": 30.0,
    },
    "one_lokr.json": {
        "adapter.kind": "lokr",
        "adapter.rank": 9,
        "adapter.factor": -1,
        "adapter.full_matrix": True,
        "training.sigma.density": "mode",
        "training.sigma.mode_scale": 1.1,
        "training.sigma.shift": 2.0,
        "training.loss.kind": "huber",
        "training.loss.huber_delta": 0.2,
        "training.schedule.warmup_steps": 200,
        "adapter.targets": "all_linear",
    },
    "one_beta.json": {
        "training.sigma.density": "beta",
        "training.sigma.alpha": 0.5,
        "training.loss.weighting": "min_snr",
        "training.loss.snr_gamma": 3.0,
        "training.checkpoint_minutes": 120.0,
        "training.optimizer.name": "prodigy",
    },
    "one_shift.json": {
        "adapter.kind": "loha",
        "training.sigma.density": "shifted",
        "training.sigma.std": 1.81,
        "training.optimizer.name": "adamw",
        "training.optimizer.learning_rate": 3e-6,
    },
    "tsiendragon.yaml": {
        "family": "qwen_image",
        "base.variant": "edit",
        "adapter.rank": 12,
        "adapter.alpha": 24.0,
        "adapter.init": "gaussian",
        "adapter.targets": [r"(.*\.)?to_q", r"(.*\.)?to_out\.0"],
        "training.sigma.density": "uniform",
        "training.optimizer.name": "adamw8bit",
        "training.optimizer.beta2": 0.99,
        "training.schedule.name": "cosine",
        "training.schedule.warmup_steps": 60,
        "training.batch_size": 3,
        "training.max_grad_norm": 0.5,
        "dataset.path": "photos/pairs",
        "dataset.control_dropout": 0.1,
        "dataset.resolution": 692,
        "cache.dir": "results/cache",
        "metrics.trackers": ["wandb"],
        "output.name": "faces",
        "training.keep_checkpoints": 10_000,
    },
    "old.yaml": {
        "family": "flux",
        "base.variant": "edit",
        "training.gradient_accumulation_steps": 4,
        "training.batch_size": 2,
        "dataset.resolution": 1024,
        "dataset.mask.source": "auto",
        "dataset.mask.foreground": 3.0,
        "dataset.mask.background": 0.5,
    },
    "fly.yaml": {
        "family": "qwen_image",
        "base.variant": "generate",
        "adapter.rank": 20,
        "adapter.alpha": 20.0,
        "adapter.init": "gaussian",
        "dataset.bucketing": "longest_side",
        "dataset.resolution": 768,
        "dataset.caption_dropout": 0.2,
        "training.batch_size": 2,
        "training.optimizer.eps": 1e-7,
        "training.optimizer.weight_decay": 0.03,
        "training.sigma.density": "uniform",
        "training.schedule.warmup_steps": None,
    },
    "fly_edit.yaml": {
        "base.variant": "edit",
        "dataset.path": "pairs",
        "dataset.layout": "paired",
        "training.optimizer.name": "adamw8bit",
        "training.schedule.name": "cosine",
        "training.schedule.warmup_steps": 20,
        "memory.base_format": "fp8",
        "metrics.trackers": ["tensorboard"],
    },
}

UNKNOWN = {
    "ai.json": ["train.strange"],
    "command.sh": ["novel"],
    "datasets.toml": ["datasets[1].sparkle"],
    "one.json": ["glitter"],
    "tsiendragon.yaml": ["sparkles"],
    "fly.yaml": ["stars"],
}


def read(name: str, **options):
    text, _ = FILES[name]
    options.setdefault("family", "z_image" if name in NO_FAMILY else "")
    return read_foreign([parse_document(name, text)], **options)


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_settings_of_the_program_that_it_is_of(name):
    run = read(name)
    assert run.program == FILES[name][1]
    assert run.certainty == "certain"
    found = {path: run.values.get(path) for path in SAID[name]}
    assert found == SAID[name]
    assert [note.key for note in run.outcome("unknown")] == UNKNOWN.get(name, [])


@pytest.mark.parametrize("name", FILES)
def test_the_run_file_says_the_same_again(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = read(name)
    config = run.config()
    path = tmp_path / "run.yaml"
    path.write_text(run.run_file(), encoding="utf-8")
    assert load_config(path) == config
    assert read(name).run_file() == run.run_file()


@pytest.mark.parametrize("name", FILES)
def test_every_key_is_told_in_the_run_file(name):
    run = read(name)
    text = " ".join(run.run_file().replace("\n", " ").replace("#", " ").split())
    for note in run.notes:
        if note.outcome != "exact":
            assert " ".join(note.key.split()) in text, note


def test_defaults_of_the_other_program_are_written_where_they_are_not_ours():
    run = read("sigma.txt")
    assert "musubi-tuner's default of network_dim" in run.run_file()
    assert {note.key for note in run.outcome("default")} >= {"network_dim", "learning_rate"}


def test_files_that_a_file_names_are_read_where_they_may(tmp_path):
    command = files.MUSUBI_SIGMA + " --dataset_config sets.toml --sample_prompts p.txt"
    command += " --sample_every_n_steps 25"
    (tmp_path / "sets.toml").write_text(files.MUSUBI_DATASETS, encoding="utf-8")
    prompts = "# none\na cat --w 640 --h 512 --s 12 --n bad --x 3\na dog --w 640\n"
    (tmp_path / "p.txt").write_text(prompts, encoding="utf-8")
    document = parse_document(str(tmp_path / "c.txt"), command)
    run = read_foreign([document], beside=Beside(document.name))
    assert run.values["dataset.path"] == "/data/cats"
    assert run.values["preview.prompts"] == ["a cat", "a dog"]
    assert (run.values["preview.width"], run.values["preview.every"]) == (640, 25)
    assert "sample_prompts (--x)" in {note.key for note in run.outcome("lacking")}
    alone = read_foreign([document])
    assert "dataset.path" not in alone.values
    lost = {note.key for note in alone.outcome("lacking")}
    assert {"dataset_config", "sample_prompts"} <= lost
    both = read_foreign([document, parse_document("sets.toml", files.MUSUBI_DATASETS)])
    assert both.values["dataset.path"] == "/data/cats"


def test_a_command_is_read_as_a_file_of_it():
    run = read_foreign([command_document(files.MUSUBI_SIGMA)])
    assert run.values == read("sigma.txt").values


def test_settings_of_the_tables_exist_and_their_defaults_fit():
    for program in PROGRAMS:
        for table in program.tables.values():
            for key, rule in table.items():
                if isinstance(rule, Maps):
                    assert find_setting(rule.setting) is not None, (program.name, key)


def test_a_value_that_our_setting_cannot_have_is_left_out_and_told():
    run = read_foreign(
        [parse_document("x.yaml", files.AI_TOOLKIT.replace("linear: 24", "linear: 9999"))]
    )
    assert "adapter.rank" not in run.values
    (note,) = [each for each in run.outcome("lacking") if each.key == "network.linear"]
    assert "at most 4096" in note.why


def test_texts_of_a_stranger_stay_comments():
    evil = "x\\u2028seed: 5\\nseed: 6\\u0085seed: 7"
    text = files.AI_TOOLKIT_JSON.replace('"strange"', f'"{evil}"').replace(
        '"x": 1', f'"x": "{evil}"'
    )
    run = read_foreign([parse_document("x.json", text)])
    assert len(run.outcome("unknown")) == 1
    assert load_config({}).seed == 0
    assert yaml.safe_load(run.run_file())["seed"] == RunConfig().seed


def test_the_page_has_the_tables_that_are_read_by():
    assert PAGE.read_text(encoding="utf-8").partition(MARK)[2] == tables().removeprefix(MARK)


def test_template_writes_a_run_file_that_doctor_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boats.yaml").write_text(files.AI_TOOLKIT, encoding="utf-8")
    own = ["base.path=embedded", "dataset.path=pictures", "dataset.folders=[]"]
    own += ["dataset.resolution=64", "dataset.more_resolutions=[]", "memory.base_format=auto"]
    own += ["memory.device=cpu"]
    assert main(["template", "--from", "boats.yaml", "run.yaml", *own]) == 0
    assert "ai-toolkit (certain)" in "".join(capsys.readouterr())
    assert main(["template", "--from", "boats.yaml", "run.yaml"]) == 2
    assert "is there already" in capsys.readouterr().err
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (64, 64), (40 * number, 9, 9)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("a boat", encoding="utf-8")
    assert main(["doctor", "run.yaml", "training.precision=fp32"]) == 0
    assert main(["template", "--from-command", files.MUSUBI_SIGMA, "--json"]) == 0
    out = capsys.readouterr().out
    told = next(json.loads(line) for line in out.splitlines() if '"musubi-tuner"' in line)
    assert {note["outcome"] for note in told["notes"]} >= {"exact", "default"}


OTHERS = [
    parse_document("a.json", '{"job": "a word that many files have"}'),
    parse_document("b.yaml", "services: {web: {image: x}}"),
    parse_document("c.toml", "[tool.black]\nline-length = 100"),
    parse_document("d.json", '[{"path": "x"}]'),
]


@pytest.mark.parametrize("name", FILES)
def test_a_run_file_is_found_among_files_that_are_none(name):
    document = parse_document(name, FILES[name][0])
    found = in_reading_order([*OTHERS, document])
    # OneTrainer has lists of concepts in files of their own.
    beside = OTHERS[3:] if FILES[name][1] == "OneTrainer" else []
    assert found == [document, *beside]


def test_of_files_that_are_none_no_run_is_made():
    assert in_reading_order(OTHERS) == []


def test_files_of_which_each_says_all_are_refused_together():
    both = [parse_document(name, files.AI_TOOLKIT) for name in ("a.yaml", "b.yaml")]
    with pytest.raises(InputError, match=r"a\.yaml, b\.yaml together"):
        read_foreign(both)
