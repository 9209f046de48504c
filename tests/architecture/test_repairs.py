"""Every fault that new and hostile use found, and the tests that hold its repair."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

REPAIRS = {
    "defaults learn alike for every kind": (
        "unit/adapters/test_pace.py::test_defaults_keep_pace_with_a_lora",
        "unit/adapters/test_pace.py::test_committed_calibration_meets_the_bar_with_the_defaults",
        "unit/adapters/test_pace.py::test_what_is_far_off_is_told_with_the_remedy",
    ),
    "own images keep what the base can do": (
        "integration/test_preservation.py::test_points_lie_on_the_way_of_an_image_that_the_base_alone_makes",
        "integration/test_preservation.py::test_resumed_run_with_preservation_equals_the_uninterrupted_one",
        "integration/test_preservation.py::test_regularization_images_weigh_what_their_setting_says",
        "integration/test_preservation.py::test_the_length_follows_from_the_images_seen",
        "unit/benchmarks/test_records.py::test_own_images_meet_their_bars",
    ),
    "the message of a loss that is not finite leads on": (
        "integration/test_changed_settings.py::test_a_run_that_breaks_goes_on_from_the_checkpoint_that_its_remedy_names",
        "comfyui/test_graph_errors.py::test_a_loss_that_is_not_finite_stops_at_the_last_good_state",
    ),
    "noise levels, long captions, signals": (
        "unit/commands/test_caption_lengths.py::",
        "unit/diffusion/test_sigma.py::",
        "unit/training/test_run_folder.py::test_a_signal_that_ends_a_run_at_once_is_named_until_the_run_goes_on",
    ),
    "the tiny template takes every kind; AdapterConfig is a library's": (
        "unit/config/test_kinds.py::test_every_template_takes_every_kind",
        "unit/config/test_kinds.py::test_the_librarys_words_of_the_design",
    ),
    "LoKr on fused layers": (
        "unit/adapter_files/test_undivided.py::",
        "comfyui/test_train_lora_file.py::test_a_lokr_that_no_parts_have_stays_whole",
    ),
    "other models' files are named": (
        "unit/bases/test_foreign_models.py::test_a_file_of_another_model_is_named",
        "unit/bases/test_foreign_models.py::test_other_sizes_need_the_base",
    ),
    "a proof says what it proved": ("unit/commands/test_proving.py::",),
    "what lies beside the factors is named": ("unit/adapter_files/test_unread.py::",),
    "links do not lead out of the allowed folders": (
        "unit/test_allowed.py::",
        "comfyui/test_graph_hostile.py::test_a_link_inside_of_a_dataset",
        "architecture/test_conduct.py::test_what_a_graph_makes_the_trainer_read_is_kept_within",
    ),
    "a version has one owner": (
        "unit/test_locks.py::",
        "unit/training/test_run_folder.py::test_of_all_processes_that_resume_a_version_at_once_exactly_one_owns_it",
    ),
    "killed work leaves nothing; a damaged checkpoint costs one": (
        "unit/commands/test_leftovers.py::test_a_verb_that_was_killed_leaves_nothing_for_long",
        "integration/test_leftovers.py::test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one",
        "unit/training/test_whole_checkpoints.py::",
    ),
    "broken and endless content ends in three parts": (
        "integration/test_hostile_input.py::",
        "architecture/test_conduct.py::test_texts_and_json_are_read_in_one_place",
    ),
    "prompts of the API": ("comfyui/test_graph_hostile.py::",),
    "a user's ComfyUI is only read": ("comfyui/test_environment.py::test_a_change_is_seen",),
    "work on files is quick": (
        "unit/adapter_files/test_converting_cost.py::test_converting_reads_a_file_once_and_once_more_to_prove_it",
        "unit/commands/test_reports.py::test_dataset_report_opens_every_file_once",
        "unit/weights/test_float8.py::",
    ),
    "figures name commit and machine, and are those of the code": (
        "unit/benchmarks/test_records.py::test_a_file_says_which_commit_and_machine_it_is_of",
        "unit/benchmarks/test_records.py::test_the_counters_of_a_layer_are_those_of_the_code",
    ),
}
"""Fault to tests: ``file::function``, or ``file::`` for a file that is about nothing else."""


@pytest.mark.parametrize("fault", REPAIRS)
def test_a_repair_has_its_tests(fault):
    missing = [each for each in REPAIRS[fault] if not _exists(each)]
    assert missing == []


def test_a_test_that_is_not_there_is_noticed():
    assert not _exists("architecture/test_repairs.py::test_that_is_not_there")
    assert not _exists("architecture/test_that_is_not_there.py::")


def _exists(test: str) -> bool:
    file, _, wanted = test.partition("::")
    path = TESTS / file
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    return wanted in found if wanted else any(name.startswith("test_") for name in found)
