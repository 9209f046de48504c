"""Lengths in epochs become steps where the dataset is there; patterns that a shell has spoiled."""

import pytest
from PIL import Image

from trainer_core.commands.foreign_template import count_epoch
from trainer_core.errors import ConfigError
from trainer_core.foreign_runs import NamedFiles, command_document, open_document, read_foreign

COMMAND = (
    "accelerate launch qwen_image_train_network.py --dit m.safetensors --dataset_config {data} "
    "--max_train_epochs 16 --save_every_n_epochs 2 "
    "--network_module networks.loha --gradient_accumulation_steps 2 "
)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (64, 64)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("an image")
    return folder


def musubi(images, words=""):
    data = images.parent / "data.toml"
    data.write_text(
        "[general]\nbatch_size = 3\nenable_bucket = true\nnum_repeats = 4\n"
        f"[[datasets]]\nimage_directory = '{images}'\n"
        f"cache_directory = '{images.parent / 'cache'}'\ncaption_extension = '.txt'\n"
    )
    documents = [command_document(COMMAND.format(data=data) + words)]
    return read_foreign(documents, beside=NamedFiles(str(data)), count=count_epoch)


def test_epochs_are_steps_where_the_images_are_there(images):
    # 5 images, 4 times each, in steps of 3 x 2 samples: 3.3 steps.
    run = musubi(images)
    lengths = run.values["training.steps"], run.values["training.checkpoint_every"]
    assert lengths == (16 * 4, 2 * 4)
    near = {note.key: note.why for note in run.outcome("near")}
    assert near["max_train_epochs"] == "Steps of an epoch, as this dataset is now: 4."
    for number, size in enumerate([(2048, 512), (512, 2048), (1400, 700), (700, 1400)]):
        Image.new("RGB", size).save(images / f"{number}.png")
    near = {note.key: note.why for note in musubi(images).outcome("near")}
    apart = " 4. With a step for each size apart, as there, they are 5."
    assert near["max_train_epochs"].endswith(apart)


def test_epochs_are_told_where_the_images_are_not_there_or_nobody_may_look(images):
    data = images.parent / "data.toml"
    musubi(images)
    blind = read_foreign([command_document(COMMAND.format(data=data)), open_document(data)])
    for image in images.iterdir():
        image.unlink()
    for run in (blind, musubi(images)):
        lost = {note.key: note.why for note in run.outcome("lacking")}
        assert "training.steps" not in run.values
        assert {"max_train_epochs", "save_every_n_epochs"} <= set(lost)
        assert lost["max_train_epochs"].startswith("Set training.steps: epochs x images")


@pytest.mark.parametrize("epochs", [0, -1])
def test_no_epochs_are_no_steps(images, epochs):
    run = musubi(images, f"--max_train_epochs {epochs} --save_every_n_epochs -2")
    lost = {note.key for note in run.outcome("lacking")}
    assert "training.steps" not in run.values
    assert {"max_train_epochs", "save_every_n_epochs"} <= lost


def test_a_folder_whose_name_no_file_system_takes_is_not_counted(images):
    run = musubi(images.parent / ("x" * 5000))
    assert "max_train_epochs" in {note.key for note in run.outcome("lacking")}


@pytest.mark.parametrize("key", ["backup_after", "save_every"])
def test_epochs_of_one_trainer(images, key):
    path = images.parent / "config.json"
    path.write_text(
        '{"training_method": "LORA", "model_type": "QWEN", "base_model_name": "m", "epochs": 3,'
        f'"batch_size": 2, "{key}": 1, "{key}_unit": "EPOCH", "__version": 9,'
        f'"concepts": [{{"path": "{images}", "name": "x", "balancing": 1.0}}]}}'
    )
    run = read_foreign([open_document(path)], beside=NamedFiles(str(path)), count=count_epoch)
    assert (run.values["training.steps"], run.values["training.checkpoint_every"]) == (3 * 3, 3)


@pytest.mark.parametrize("value", ["[r.*mlp.*]", "[r'a", "r'.*'", "[1]", "[" * 5000])
def test_patterns_whose_quotes_a_shell_took_are_an_error(images, value):
    with pytest.raises(ConfigError, match=r"exclude_patterns.*\n.*in quotes of its own") as error:
        musubi(images, f'--network_args "exclude_patterns={value}"')
    assert "adapter.exclude" not in str(error.value)


def test_patterns_in_quotes_are_taken_beside_paths_of_windows(images):
    words = r"""--network_args "exclude_patterns=[r'.*mlp\.0', '.*to_q']" """
    run = musubi(images, words + r"--network_weights C:\start.safetensors")
    assert run.values["adapter.exclude"] == [r".*mlp\.0", ".*to_q"]
    assert run.values["adapter.start_from"] == "C:/start.safetensors"


def test_what_prodigy_always_does_is_no_loss(images):
    words = "--optimizer_type Prodigy --optimizer_args use_bias_correction=True"
    run = musubi(images, f"{words} safeguard_warmup=False")
    assert "optimizer_args (use_bias_correction)" in {note.key for note in run.outcome("off")}
    lost = {note.key: note.why for note in run.outcome("lacking")}
    assert lost["optimizer_args (safeguard_warmup)"] == "It is always on here."


def test_a_run_file_of_qwen_image_finetune_leaves_no_key_of_its_loader_unknown(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "trainer: QwenImageEdit\nmodel: {lora: {r: 16}}\n"
        "data: {init_args: {dataset_path: d, num_workers: 4, prefetch_factor: 2, "
        "persistent_workers: true}}\n"
        "train: {max_train_steps: 1000, num_epochs: 10, resume_from_checkpoint: latest}\n"
        "optimizer: {class_path: torch.optim.AdamW}\nlogging: {output_dir: out}\n"
    )
    run = read_foreign([open_document(path)])
    assert run.outcome("unknown") == []
    assert (run.values["training.steps"], run.values["output.layouts"]) == (
        1000,
        ["comfyui", "diffusers"],
    )
