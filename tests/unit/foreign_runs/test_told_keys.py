"""Every key of a file of another program is told, and none as what it is not."""

import itertools
import json

import pytest
from fixtures import foreign_files as files
from fixtures.tables import table

from trainer_core.config import dataset_folders
from trainer_core.foreign_runs import read_foreign
from trainer_core.foreign_runs.documents import parse_document


def read(text):
    return read_foreign([parse_document("x.yaml", text)])


def told(run, key):
    """Outcome and setting of a key that is told once."""
    (note,) = [note for note in run.notes if note.key == key]
    return note.outcome, note.setting


def one_trainer(*concepts):
    values = json.loads(files.ONE_TRAINER) | {"concepts": list(concepts)}
    return read(json.dumps(values))


def test_what_decides_the_role_and_the_weight_of_a_folder_is_told():
    text = files.AI_TOOLKIT.replace("is_reg: true", "is_reg: true\n          loss_multiplier: 3")
    run = read(text)
    assert run.values["dataset.folders"][0]["role"] == "regularization"
    assert run.values["dataset.folders"][0]["weight"] == 1.5
    for key in ("is_reg", "loss_multiplier"):
        assert told(run, f"datasets[1].{key}") == ("exact", "dataset.folders")
    assert "ai-toolkit: datasets[1].is_reg = true" in " ".join(
        run.run_file().replace("#", "").split()
    )


def test_a_lokr_without_full_rank_keeps_its_rank_also_where_that_says_null():
    for off in ("false", "null"):
        run = read(files.AI_TOOLKIT_LOKR.replace("lokr_full_rank: true", f"lokr_full_rank: {off}"))
        assert (run.values["adapter.full_matrix"], run.values["adapter.rank"]) == (False, 16)


def datasets(*folders):
    text = files.AI_TOOLKIT
    start, end = text.index("      datasets:"), text.index("      train:")
    return read(f"{text[:start]}      datasets: {json.dumps(folders)}\n{text[end:]}")


def test_what_the_first_folder_alone_says_is_told_of_the_others():
    first = {"folder_path": "a", "alpha_mask": True, "flip_x": True, "shuffle_tokens": True}
    run = datasets(first, {"folder_path": "b"}, {"folder_path": "c", "flip_x": True})
    assert told(run, "datasets[1] (flip)") == ("lacking", "")
    assert [each["captions"] for each in run.values["dataset.folders"]] == [{}, {}]
    run = datasets({"folder_path": "a"}, {"folder_path": "b", "alpha_mask": True})
    assert told(run, "datasets[1].alpha_mask") == ("exact", "dataset.folders")


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_each_folder_reads_its_own_masks_alone(order):
    sources = ("alpha", "auto", "none")
    parts = ({"alpha_mask": True}, {"mask_path": "m"}, {})
    run = datasets(*({"folder_path": str(at), **parts[at]} for at in order))
    found = dataset_folders(run.config().dataset)
    assert [each.settings.mask.source for each in found] == [sources[at] for at in order]
    masks = [each.settings.mask_folder for each in found]
    assert [each.endswith("m") for each in masks] == [at == 1 for at in order]


def test_a_folder_that_is_named_for_each_size_is_one_folder():
    sizes = [{"folder_path": "a", "resolution": size} for size in (512, 1024, [768, 512])]
    values = datasets(*sizes).values
    assert "dataset.folders" not in values
    found = values["dataset.resolution"], values["dataset.more_resolutions"]
    assert found == (1024, [768, 512])
    values = datasets(*sizes, {"folder_path": "b", "resolution": 512}).values
    assert values["dataset.more_resolutions"] == [768, 512]
    assert values["dataset.folders"][0]["more_resolutions"] == []


def test_the_type_and_the_weight_of_a_concept_are_told():
    run = one_trainer(
        {"path": "a", "type": "STANDARD", "loss_weight": 1.0},
        {"path": "b", "type": "VALIDATION"},
        {"path": "c", "type": "PRIOR_PREDICTION", "loss_weight": 0.25},
        {"path": "d", "type": "ELSE"},
    )
    roles = [each["role"] for each in run.values["dataset.folders"]]
    assert roles == ["validation", "regularization", "train"]
    assert told(run, "concepts[0].type") == ("off", "")
    assert told(run, "concepts[1].type") == ("exact", "dataset.folders")
    assert told(run, "concepts[2].type") == ("near", "dataset.folders")
    assert told(run, "concepts[2].loss_weight") == ("exact", "dataset.folders")
    assert told(run, "concepts[3].type") == ("lacking", "")


def test_where_no_folder_is_trained_nothing_of_them_is_called_the_same():
    run = one_trainer({"path": "a", "type": "VALIDATION", "balancing": 3})
    assert "dataset.path" not in run.values
    for key in ("path", "type", "balancing"):
        assert told(run, f"concepts[0].{key}") == ("lacking", "")
    assert not [note for note in run.outcome("default") if note.key.startswith("concepts")]


def test_the_type_that_chooses_a_slider_is_told():
    for text in (files.AI_TOOLKIT_SLIDER, files.AI_TOOLKIT_SLIDER_OLD):
        assert told(read(text), "type") == ("exact", "dataset.slider")


SCHEDULES = table(__file__, "schedules")


@pytest.mark.parametrize(("schedule", "rate", "outcomes"), SCHEDULES)
def test_every_number_of_a_schedule_is_told_once(schedule, rate, outcomes):
    params = {key: 1e-5 if key == "eta_min" else 4 for key in outcomes}
    text = files.AI_TOOLKIT_FLUX.replace("lr_scheduler: constant_with_warmup", "lr: " + rate)
    assert text != files.AI_TOOLKIT_FLUX
    run = read(
        text.replace("{num_warmup_steps: 40}", f"{json.dumps(params)}, lr_scheduler: {schedule}")
    )
    found = {key: told(run, f"train.lr_scheduler_params.{key}")[0] for key in outcomes}
    assert found == outcomes


def test_a_slider_says_what_of_another_program_has_no_counterpart():
    run = read_foreign([parse_document("slider.yaml", files.AI_TOOLKIT_SLIDER)])
    lacking = {note.key for note in run.outcome("lacking")}
    assert {"datasets[0]", "trigger_word"} <= lacking
    assert "train.prompt_dropout_prob" in {note.key for note in run.outcome("off")}
    older = read_foreign([parse_document("old.yaml", files.AI_TOOLKIT_SLIDER_OLD)])
    lacking = {note.key for note in older.outcome("lacking")}
    assert lacking >= {"slider.targets[2]", "slider.targets[1].shuffle"}
    assert not any(key.startswith("slider.targets[0]") for key in lacking)


def test_a_slider_section_of_another_job_asks_for_nothing():
    text = files.AI_TOOLKIT_SLIDER.replace("type: concept_slider", "type: sd_trainer")
    run = read_foreign([parse_document("job.yaml", text)])
    assert not any(path.startswith("dataset.slider") for path in run.values)
    assert run.values["dataset.path"] == "faces"
    assert "slider.positive_prompt" in {note.key for note in run.outcome("off")}


def test_what_is_applied_is_not_left_out_and_sections_are_told_key_by_key():
    more = {"lora_decompose": True, "unet": {"odd": 1, "b": {"c": 2}}}
    run = read(json.dumps(json.loads(files.ONE_TRAINER) | more))
    assert told(run, "lora_decompose") == ("exact", "adapter.dora")
    assert [told(run, key) for key in ("unet.odd", "unet.b.c")] == [("off", "")] * 2
    text = files.AI_TOOLKIT + "meta: {odd: {name: x}, version: 1.0}\n"
    assert told(read(text), "meta.odd.name") == ("off", "")


@pytest.mark.parametrize(("more", "values", "outcomes"), table(__file__, "one_trainer"))
def test_a_key_of_one_trainer_is_told_as_what_it_sets(more, values, outcomes):
    run = read(json.dumps(json.loads(files.ONE_TRAINER) | more))
    run.config()
    assert {path: run.values.get(path) for path in values} == values
    found = {key: [each.outcome for each in run.notes if each.key == key] for key in outcomes}
    assert {key: " ".join(each) for key, each in found.items()} == outcomes


def test_what_previews_do_not_share_stands_behind_their_prompts():
    lines = 'prompts: ["a --w 64 --n dull, dark --m 0.5", "b"]'
    more = f"{lines}\n        samples: [{{prompt: c, seed: 9, sample_steps: 4}}]"
    old = 'prompts: ["[trigger] on a lake", "a harbour"]'
    assert old in files.AI_TOOLKIT
    run = read(files.AI_TOOLKIT.replace(old, more))
    assert run.values["preview.prompts"] == ["a --w 64 --n dull, dark", "b", "c --d 9 --s 4"]
    assert told(run, "sample.samples (m)")[0] == "lacking"
    assert told(run, "sample.samples (seed)") == ("exact", "preview.prompts")
    samples = [{"prompt": "a", "seed": 3, "width": 64}, {"prompt": "b", "seed": 5, "width": 64}]
    run = read(json.dumps(json.loads(files.ONE_TRAINER) | {"samples": samples}))
    assert run.values["preview.prompts"] == ["a --d 3", "b --d 5"]
    assert run.values["preview.width"] == 64
    assert run.config().preview.of_prompt("b --d 5", 1).seed == 5


@pytest.mark.parametrize(("name", "rate"), [("automagic", "1e-6"), ("Automagic3", "0.5")])
def test_an_optimizer_that_finds_its_rates_becomes_one_that_finds_its_rate(name, rate):
    own = f"lr: {rate}, optimizer: {name}, optimizer_params: {{weight_decay: 0.02, lr_bump: 1e-6}}"
    run = read(files.AI_TOOLKIT_FLUX.replace("lr_scheduler: constant_with_warmup", own))
    optimizer = run.config().training.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == (
        *("prodigy_schedule_free", 1.0),
        0.02,
    )
    why = {note.key: (note.outcome, note.why) for note in run.notes}
    assert "one for all" in why["train.optimizer"][1]
    assert "begins with" in why["train.lr"][1]
    assert why["train.optimizer_params.lr_bump"][0] == "lacking"
