"""Every key of a file of another program is told, and none as what it is not."""

from __future__ import annotations

import json

import pytest
from fixtures import foreign_files as files

from trainer_core.foreign_runs import command_document, read_foreign
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
    assert "ai-toolkit: datasets[1].is_reg = true" in " ".join(run.run_file().split())


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


def test_a_weight_that_the_first_folder_cannot_have_is_told_once():
    run = one_trainer({"path": "a", "loss_weight": 2.0})
    assert told(run, "concepts[0].loss_weight") == ("lacking", "")


def test_where_no_folder_is_trained_nothing_of_them_is_called_the_same():
    run = one_trainer({"path": "a", "type": "VALIDATION", "balancing": 3})
    assert "dataset.path" not in run.values
    for key in ("path", "type", "balancing"):
        assert told(run, f"concepts[0].{key}") == ("lacking", "")
    assert not [note for note in run.outcome("default") if note.key.startswith("concepts")]


def test_the_type_that_chooses_a_slider_is_told():
    for text in (files.AI_TOOLKIT_SLIDER, files.AI_TOOLKIT_SLIDER_OLD):
        assert told(read(text), "type") == ("exact", "dataset.slider")


@pytest.mark.parametrize(
    ("schedule", "rate", "outcomes"),
    [
        (
            "linear",
            "1e-4",
            {"eta_min": "lacking", "num_cycles": "lacking", "num_warmup_steps": "lacking"},
        ),
        ("unheard_of", "1e-4", {"eta_min": "lacking", "num_warmup_steps": "exact"}),
        ("constant", "1e-4", {"eta_min": "off", "num_cycles": "off", "power": "off"}),
        ("cosine", "1e-4", {"eta_min": "exact", "power": "off", "glow": "lacking"}),
        ("cosine", "0", {"eta_min": "lacking", "num_cycles": "off"}),
    ],
)
def test_every_number_of_a_schedule_is_told_once(schedule, rate, outcomes):
    params = {key: 1e-5 if key == "eta_min" else 4 for key in outcomes}
    text = files.AI_TOOLKIT_FLUX.replace("lr_scheduler: constant_with_warmup", "lr: " + rate)
    assert text != files.AI_TOOLKIT_FLUX
    run = read(
        text.replace("{num_warmup_steps: 40}", f"{json.dumps(params)}, lr_scheduler: {schedule}")
    )
    found = {key: told(run, f"train.lr_scheduler_params.{key}")[0] for key in outcomes}
    assert found == outcomes


def test_an_older_key_of_a_model_is_told_with_what_the_file_says():
    notes = [note for note in read(files.AI_TOOLKIT_FLUX).notes if note.key == "model.is_flux"]
    assert notes
    assert {note.value for note in notes} == {"true"}


def test_the_script_of_a_command_counts_as_one_key():
    run = read_foreign([command_document("python zimage_train_network.py --seed 3 --dit z")])
    assert {note.key for note in run.outcome("exact")} == {"the script", "seed", "dit"}
    assert "3 keys say the same" in run.summary()[0]
