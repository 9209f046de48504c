"""Sliders of other trainers."""

from __future__ import annotations

from fixtures import foreign_files as files

from trainer_core.foreign_runs import read_foreign
from trainer_core.foreign_runs.documents import parse_document


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
    assert "slider" in {note.key for note in run.outcome("off")}
