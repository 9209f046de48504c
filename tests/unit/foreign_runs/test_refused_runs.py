"""Files of other programs that train no adapter of ours are refused by what they say."""

import pytest
from fixtures import foreign_files as files
from fixtures.tables import table

from trainer_core.errors import InputError
from trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from trainer_core.families.run_files import words_elsewhere
from trainer_core.foreign_runs import Document, command_document, read_foreign
from trainer_core.foreign_runs.documents import parse_document


@pytest.mark.parametrize(
    ("command", "script"),
    [
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
        assert "Base From Model" in error.value.remedy


SCRIPTS = ("", "sdxl_", "sd3_", "lumina_", "anima_", "hunyuan_image_")


@pytest.mark.parametrize("script", [f"{each}train_network.py" for each in SCRIPTS])
def test_a_script_of_a_model_without_family_is_read_for_the_graph_alone(script):
    command = f"accelerate launch {script} --pretrained_model_name_or_path m --network_dim 8"
    with pytest.raises(InputError) as error:
        read_foreign([command_document(command)])
    assert error.value.found == f"the command: the script is {script}"
    assert "flux_train_network.py" in error.value.expected
    assert "Base From Model" in error.value.remedy
    values = read_foreign([command_document(f"{command} --fp8_base")], in_graph=True).values
    assert (values["family"], values["base.path"], values["adapter.rank"]) == (GRAPH_MODEL, "m", 8)
    assert "memory.base_format" not in values


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


ALTERED = table(__file__, "refused_files")
REFUSED = {
    **{
        name: (getattr(files, file).replace(before, after), words)
        for name, (file, before, after, words) in ALTERED.items()
    },
    "blocks": (
        "network_module: networks.lora_flux\nunet_lr: 1\n"
        "network_args: [train_single_block_indices=3-1]",
        "network_args (train_single_block_indices) is 3-1",
    ),
    "processes": ("job: extension\nconfig: {process: [3]}", "process"),
    "no process": ("job: extension\nconfig: {process: []}", "process"),
    "nothing": ("a: 1", "x.yaml"),
    "of a GUI": (
        "{LoRA_type: Flux1, max_resolution: '512,512', network_module: '', train_data_dir: d}",
        "the GUI kohya_ss",
    ),
    "huge": (files.AI_TOOLKIT.replace("steps: 1800", f"steps: {10**400}"), "train.steps is 1000"),
    "no LoRA": (files.ONE_TRAINER.replace('"LORA"', f'"{"x" * 5000}"'), "training_method is xxxx"),
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


def keys(run, *outcomes):
    return [note.key for note in run.outcome(*outcomes)]


def test_what_a_further_folder_cannot_say_is_left_out_and_not_called_the_same():
    run = read_foreign([parse_document("x.yaml", files.AI_TOOLKIT)])
    (note,) = [note for note in run.notes if note.key == "datasets[1].flip_x"]
    assert note.outcome == "lacking"
    assert "dataset.flip holds for all folders" in note.why


def test_names_with_one_word_and_without_another_become_targets_and_excludes():
    only = "^(?=.*attention)(?!.*refiner).*,^(?=.*feed_forward)(?!.*{}).*"
    text = files.ONE_TRAINER.replace('"attn,img_mlp"', '"{}", "layer_filter_regex": true')
    one = text.replace("{}", only.format("refiner"), 1)
    run = read_foreign([parse_document("x.json", one)])
    assert run.values["adapter.targets"] == [".*attention.*", ".*feed_forward.*"]
    assert run.values["adapter.exclude"] == [".*refiner.*"]
    two = read_foreign([parse_document("x.json", text.replace("{}", only.format("other"), 1))])
    assert "adapter.exclude" not in two.values
    assert keys(two, "lacking").count("layer_filter") == 1
