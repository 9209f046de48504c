"""Files of other programs that train no adapter of ours are refused by what they say."""

from __future__ import annotations

import pytest
from fixtures import foreign_files as files

from trainer_core.errors import InputError
from trainer_core.families.run_files import words_elsewhere
from trainer_core.foreign_runs import Document, command_document, read_foreign
from trainer_core.foreign_runs.documents import parse_document

NETWORK = "network: {type: lora, linear: 24, linear_alpha: 12}"
MODEL = "{name_or_path: Qwen/Qwen-Image, arch: qwen_image, quantize: true, qtype: qfloat8}"


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("accelerate launch sdxl_train_network.py --network_dim 8", "sdxl_train_network.py"),
        ("accelerate launch --x 1 sd/flux_train_network.py --ae a", "flux_train_network.py"),
        ("python train_network.py --network_dim 8", "train_network.py"),
        ("accelerate launch wan_train_network.py --dit w", "wan_train_network.py"),
        ("python qwen_image_train.py --dit q", "qwen_image_train.py"),
        ("python run.py config/mine.yaml", "run.py"),
        (r"py C:\tools\train_db.py --lr 1", "train_db.py"),
    ],
)
def test_a_command_of_another_script_is_refused_by_its_name(command, script):
    read = {f"{word.split()[0]}_train_network.py" for word in words_elsewhere("musubi-tuner")}
    for family in ("", "flux"):
        with pytest.raises(InputError) as error:
            read_foreign([command_document(command)], family=family)
        assert error.value.found == f"the command starts {script}"
        assert all(each in error.value.expected for each in read)
        assert "sd-scripts" in error.value.remedy


def test_of_several_commands_the_last_training_is_read():
    script = f"python zimage_cache_latents.py --vae v\n{files.MUSUBI_SIGMA}\npython convert.py x"
    run = read_foreign([parse_document("all.sh", script)])
    assert run.values["family"] == "z_image"
    with pytest.raises(InputError, match=r"starts convert\.py"):
        read_foreign([parse_document("some.sh", script.replace("train_network", "cache"))])


@pytest.mark.parametrize(
    "line",
    [
        "cd musubi-tuner && {} --seed 5",
        "source venv/bin/activate && {} --seed 5 && python convert.py x",
        "cd musubi-tuner; python cache.py; {} --seed 5; echo done",
        "& {} --seed 5 2>&1 | tee log.py",
        "{} --seed 5 --output_name 'a; b' || echo x.py",
    ],
)
def test_of_several_commands_of_a_line_the_last_training_is_read(line):
    run = read_foreign([parse_document("s.sh", line.format(files.MUSUBI_SIGMA))])
    alone = f"{files.MUSUBI_SIGMA} --seed 5"
    alone += " --output_name 'a; b'" if "a; b" in line else ""
    assert run.values == read_foreign([command_document(alone)]).values
    assert run.values["seed"] == 5
    assert not run.outcome("unknown")


def test_a_command_without_a_script_is_refused_in_words():
    with pytest.raises(InputError, match="no line of it starts a Python script"):
        command_document("cd tuner.python && echo 'see a.py there'")
    for family in ("", "flux"):
        document = Document("s.sh", {"command": ["cd", "musubi-tuner"]}, "command")
        with pytest.raises(InputError) as error:
            read_foreign([document], family=family)
        assert error.value.found == "s.sh starts no Python script"
        assert "names" not in error.value.remedy


REFUSED = {
    "generates": (
        files.AI_TOOLKIT.replace("type: diffusion_trainer", "type: to_folder"),
        "type of config.process[0] is to_folder",
    ),
    "no adapter": (files.AI_TOOLKIT.replace(NETWORK, ""), "config.process[0] has no network"),
    "empty network": (files.AI_TOOLKIT.replace(NETWORK, "network:"), "has no network"),
    "older model": (
        files.AI_TOOLKIT.replace(MODEL, "{name_or_path: a, is_lumina2: true}"),
        "model.is_lumina2 is true",
    ),
    "no model": (files.AI_TOOLKIT.replace(MODEL, "{name_or_path: a}"), "model.arch is not set"),
    "sd-scripts": (
        'pretrained_model_name_or_path: a\nnetwork_dim: 4\nnetwork_module: "networks.lora_flux"\n'
        "network_alpha: 2",
        "has pretrained_model_name_or_path, an argument of sd-scripts",
    ),
    "whole model": (files.FLYMYAI.replace("rank: 20", ""), "rank is not set"),
    "steps": (files.AI_TOOLKIT.replace("steps: 1800", "steps: many"), "train.steps is many"),
    "no table": (files.AI_TOOLKIT.replace(NETWORK, "network: 3"), "network"),
    "other model": (
        files.AI_TOOLKIT.replace("arch: qwen_image", "arch: wan22_14b"),
        "model.arch is wan22_14b",
    ),
    "sizes": (files.AI_TOOLKIT.replace("[512, 768, 1024]", "[512, a]"), "resolution"),
    "decay": (
        files.AI_TOOLKIT.replace("weight_decay: 1e-4", "weight_decay: {a: 1}"),
        "weight_decay",
    ),
    "processes": ("job: extension\nconfig: {process: [3]}", "process"),
    "no process": ("job: extension\nconfig: {process: []}", "process"),
    "itself": (
        files.QWEN_FINETUNE.replace('"${logging.output_dir}/cache"', '"${cache.cache_dir}"'),
        "cache.cache_dir",
    ),
    "rank": (files.FLYMYAI.replace("rank: 20", "rank: x"), "rank is x"),
    "nothing": ("a: 1", "x.yaml"),
    "beta": (
        files.AI_TOOLKIT.replace("weight_decay: 1e-4", "betas: [0.9, x]"),
        "train.optimizer_params.betas is x",
    ),
    "cycles": (
        files.AI_TOOLKIT_FLUX.replace("{num_warmup_steps: 40}", "{num_cycles: [1]}"),
        "train.lr_scheduler_params.num_cycles is [1]",
    ),
    "warm-up": (
        files.AI_TOOLKIT_FLUX.replace("{num_warmup_steps: 40}", "{num_warmup_steps: some}"),
        "train.lr_scheduler_params.num_warmup_steps is some",
    ),
    "prompt": (
        files.AI_TOOLKIT.replace("neg: blurry", "samples: [{prompt: [a]}]"),
        "sample.samples (prompt) is [a]",
    ),
    "huge": (files.AI_TOOLKIT.replace("steps: 1800", f"steps: {10**400}"), "train.steps is 1000"),
    "rate": (files.QWEN_FINETUNE.replace("lr: 1e-4", "lr: []"), "optimizer.init_args.lr is []"),
    "resolution": (files.ONE_TRAINER.replace('"512,768"', '"512x,768"'), "resolution is 512x,768"),
    "optimizer": (
        files.ONE_TRAINER.replace('"beta1": 0.9', '"beta1": "much"'),
        "optimizer.beta1 is much",
    ),
    "no LoRA": (
        files.ONE_TRAINER.replace('"LORA"', f'"{"x" * 5000}"'),
        "training_method is xxxx",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_trains_nothing_of_ours_is_refused_by_its_key(name):
    text, words = REFUSED[name]
    with pytest.raises(InputError) as error:
        read_foreign([parse_document("x.yaml", text)])
    assert words in error.value.found
    assert len(error.value.found) < 500
    assert error.value.expected
    assert error.value.remedy


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ema_decay", files.ONE_TRAINER.replace("0.995", "-1")),
        (
            "train.diff_output_preservation_multiplier",
            files.AI_TOOLKIT.replace(
                "lr: 2e-4",
                "lr: 2e-4\n        diff_output_preservation: true\n"
                "        diff_output_preservation_multiplier: -1",
            ),
        ),
    ],
)
def test_negative_numbers_are_told(name, text):
    run = read_foreign([parse_document("x.yaml", text)])
    assert name in [note.key for note in run.notes]


def keys(run, *outcomes):
    return [note.key for note in run.outcome(*outcomes)]


def test_keys_that_speak_together_are_told_where_no_other_note_names_them():
    text = files.AI_TOOLKIT.replace(", qtype: qfloat8", "").replace(
        "num_repeats: 2", "num_repeats: 2\n          shuffle_tokens: false"
    )
    run = read_foreign([parse_document("x.yaml", text)])
    assert "train.ema_config.use_ema" in keys(run, "exact")
    assert "model.quantize" in keys(run, "near")
    assert {"type", "datasets[0].shuffle_tokens"} <= set(keys(run, "off"))
    names = keys(run, "exact", "near", "off")
    assert names.count("train.ema_config.use_ema") == 1
    assert "> ai-toolkit: train.ema_config.ema_decay = 0.98 (" in run.run_file()
    assert "ai-toolkit: train.ema_config.use_ema = true" in " ".join(run.run_file().split())


def test_unknown_keys_are_told_in_the_files_order():
    unknown = [f"key_{place}" for place in range(40)]
    more = "".join(f"{key}: 1\n" for key in unknown)
    run = read_foreign([parse_document("x.yaml", files.FLYMYAI + more)])
    assert keys(run, "unknown") == ["stars", *unknown]


def test_what_a_further_folder_cannot_say_is_left_out_and_not_called_the_same():
    run = read_foreign([parse_document("x.yaml", files.AI_TOOLKIT)])
    (note,) = [note for note in run.notes if note.key == "datasets[1].flip_x"]
    assert note.outcome == "lacking"
    assert "dataset.flip holds for all folders" in note.why


def test_numbers_of_a_command_are_numbers():
    run = read_foreign([command_document(f"{files.MUSUBI_SIGMA} --max_data_loader_n_workers 2")])
    assert "max_data_loader_n_workers" in keys(run, "off")
    assert {note.key: note.value for note in run.notes}["logit_mean"] == "0.5"


def test_names_with_one_word_and_without_another_become_targets_and_excludes():
    only = "^(?=.*attention)(?!.*refiner).*,^(?=.*feed_forward)(?!.*{}).*"
    text = files.ONE_TRAINER.replace('"attn,img_mlp"', '"{}", "layer_filter_regex": true')
    one = text.replace("{}", only.format("refiner"), 1)
    run = read_foreign([parse_document("x.json", one)])
    assert run.values["adapter.targets"] == [".*attention.*", ".*feed_forward.*"]
    assert run.values["adapter.exclude"] == [".*refiner.*"]
    two = read_foreign([parse_document("x.json", text.replace("{}", only.format("other"), 1))])
    assert "adapter.exclude" not in two.values
    assert keys(two, "lacking").count("layer_filter") == 2
