"""Folders of another program are folders of a run that is not refused."""

import pytest
from PIL import Image

from trainer_core.commands.foreign_template import count_epoch
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.families.run_files import load_config
from trainer_core.foreign_runs import NamedFiles, open_document, read_foreign

JOB = "pretrained_model_name_or_path = 'm'\nnetwork_module = 'networks.lora_flux'\n{}\n"
EPOCHS = "max_train_epochs = 8\nsave_every_n_epochs = 2\nsample_every_n_epochs = 1"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a training of sd-scripts with its datasets, as the verb ``template`` does."""
    monkeypatch.chdir(tmp_path)
    for folder, count in (("a", 12), ("b", 12), ("reg", 4), ("reg/below", 2)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            Image.new("RGB", (128, 128)).save(tmp_path / folder / f"{number}.png")

    def run(datasets, arguments=EPOCHS, program="sd-scripts"):
        data, job = tmp_path / "data.toml", tmp_path / "job.toml"
        data.write_text(datasets)
        job.write_text(JOB.format(f"{arguments}\ndataset_config = 'data.toml'"))
        found = read_foreign([open_document(job)], beside=NamedFiles(str(job)), count=count_epoch)
        assert found.program == program
        scan_all(load_config(_saved(found, tmp_path / "run.yaml")).dataset)
        return found

    return run


def _saved(run, path):
    path.write_text(run.run_file(), encoding="utf-8")
    return path


def dataset(size, *subsets, batch=1):
    head = f"[[datasets]]\nresolution = {size}\nbatch_size = {batch}\n"
    return head + "".join(f"[[datasets.subsets]]\nimage_dir = {each}\n" for each in subsets)


REG = "'reg'\nis_reg = true"


def test_a_folder_of_two_datasets_is_one_of_two_sizes(read):
    several = dataset(64, "'a'\nnum_repeats = 5", batch=4) + dataset(128, "'a'", REG)
    run = read(several)
    sizes = run.values["dataset.resolution"], run.values["dataset.more_resolutions"]
    assert sizes == (128, [64])
    (reg,) = run.values["dataset.folders"]
    assert (reg.get("resolution", 128), reg["more_resolutions"]) == (128, [])
    near = {note.key for note in run.outcome("near")}
    assert {"datasets[1].subsets[0] (num_repeats)", "datasets[1].batch_size"} <= near
    # 12 images, 5 times each at two sizes in batches of 4; 4 others 3 times, one by one.
    assert run.values["training.steps"] == 8 * (12 * 5 * 2 // 4 + 4 * 3)


@pytest.mark.parametrize(
    ("datasets", "key"),
    [
        (dataset(64, "'a'", "'a'\nis_reg = true"), "datasets[0].subsets[1].is_reg"),
        (dataset(64, "'a'", "'./a'\nflip_aug = true"), "datasets[0].subsets[1].flip_aug"),
    ],
)
def test_a_folder_that_is_named_twice_stands_once_and_what_is_lost_is_told(read, datasets, key):
    run = read(datasets)
    assert "dataset.folders" not in run.values
    assert key in {note.key for note in run.outcome("lacking")}


def ai_toolkit(folder, datasets):
    job = folder / "job.yaml"
    job.write_text(
        "job: extension\nconfig: {process: [{type: sd_trainer, network: {linear: 4}, "
        f"model: {{name_or_path: m, arch: qwen_image}}, datasets: {datasets}}}]}}\n"
    )
    return read_foreign([open_document(job)])


def test_a_folder_below_another_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all" / "cats").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(tmp_path / "all" / "cats" / "1.png")
    run = ai_toolkit(tmp_path, "[{folder_path: all/cats, is_reg: true}, {folder_path: all}]")
    assert [note.key for note in run.outcome("lacking") if "all/cats" in note.value]
    assert len(scan_all(run.config().dataset).samples) == 1


@pytest.mark.parametrize("below", [0, 1])
def test_tags_that_stay_mean_nothing_where_none_is_shuffled(read, below):
    own = "'b'\nkeep_tokens = 1\nclass_tokens = 'man'" if below else "'b'\nclass_tokens = 'man'"
    run = read(("" if below else "[general]\nkeep_tokens = 1\n") + dataset(64, "'a'", own))
    assert [note.key for note in run.outcome("off") if "keep_tokens" in note.key]


def test_what_does_not_go_together_in_a_further_folder_is_left_out(tmp_path):
    captions = "{folder_path: b, keep_tokens: 1, default_caption: x}"
    run = ai_toolkit(tmp_path, f"[{{folder_path: a}}, {captions}]")
    run.config()
    assert "keep" not in run.values["dataset.folders"][0]["captions"]
    (note,) = [note for note in run.outcome("lacking") if note.key.endswith("captions.keep")]
    assert "only with shuffle" in note.why


def test_images_of_regularization_are_repeated_until_they_equal_the_trained_ones(read):
    run = read(dataset(64, "'a'\nnum_repeats = 10", REG, batch=2))
    assert run.values["dataset.folders"][0]["num_repeats"] == 30
    assert (run.values["training.steps"], run.values["training.checkpoint_every"]) == (960, 240)
    blind = read_foreign([open_document("job.toml"), open_document("data.toml")])
    (note,) = [each for each in blind.outcome("lacking") if "regularization" in each.key]
    assert "Set num_repeats of dataset.folders[0]" in note.why


def test_the_head_names_what_is_missing_alone(read):
    run = read(dataset(64, "'a'"), "output_name = 'x'")
    assert "# Check the settings, then:" in run.run_file()
    run = read_foreign([open_document("data.toml")])
    assert "# Set base.path and output.name, then:" in run.run_file()


def test_steps_of_an_epoch_follow_from_the_batch_of_each_folder(read):
    run = read(dataset(64, "'a'") + dataset(64, "'b'", batch=4))
    assert run.values["training.steps"] == 8 * (12 + 3)


def test_epochs_that_cannot_be_counted_leave_our_defaults_and_name_the_reason(read, tmp_path):
    read(dataset(64, "'a'"))
    (tmp_path / "data.toml").write_text(dataset(64, "'nowhere'"))
    job = open_document("job.toml")
    run = read_foreign([job], beside=NamedFiles("job.toml"), count=count_epoch)
    assert not {"training.checkpoint_every", "preview.every"} & run.values.keys()
    assert not {n.setting for n in run.outcome("default")} & {"training.checkpoint_every"}
    why = {note.key: note.why for note in run.outcome("lacking")}["save_every_n_epochs"]
    assert "They could not be counted: " in why
    assert "nowhere" in why
