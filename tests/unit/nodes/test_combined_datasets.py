"""Datasets that are joined in a graph become folders of one run file."""

import pytest
from fixtures.tables import table

from trainer_core.config import dataset_folders
from trainer_core.config.read_run_file import load_config

CROSS = {"flip": False, "mask": {"source": "auto", "background": 0.1}}


@pytest.fixture(scope="module")
def choice(combined_datasets):
    def make(path, role="train", weight=1.0, **values):
        values = {**CROSS, "path": f"/data/{path}", **values}
        return combined_datasets.DatasetChoice(values, role, weight)

    return make


@pytest.fixture(scope="module")
def joined(combined_datasets):
    def join(*choices):
        """The folders as the core reads them from the run file."""
        values = combined_datasets.combined(choices).values
        return dataset_folders(load_config({"dataset": values}).dataset)

    return join


def facts(folders):
    return [(each.settings.path.rpartition("/")[2], each.role, each.weight) for each in folders]


def test_roles_and_weights_go_with_their_folders(choice, joined):
    found = joined(
        choice("held", "validation"),
        choice("mine", num_repeats=3),
        choice("more", weight=0.5),
        choice("people", "regularization", 0.2),
    )
    assert facts(found) == [
        ("mine", "train", 1.0),
        ("held", "validation", 1.0),
        ("more", "train", 0.5),
        ("people", "regularization", 0.2),
    ]
    assert [each.settings.num_repeats for each in found] == [3, 1, 1, 1]


@pytest.mark.parametrize(("one", "other", "words"), table(__file__, "unlike folders"))
def test_what_no_folder_can_have_for_itself_is_refused(
    choice, joined, combined_datasets, one, other, words
):
    with pytest.raises(combined_datasets.InputError) as caught:
        joined(choice("a", **one), choice("b", **other))
    assert all(each in caught.value.found for each in words)
    assert "dataset.resolution" in caught.value.expected
    assert "alike" in caught.value.remedy


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ([("a", "validation", 1.0), ("b", "regularization", 1.0)], "no dataset with role train"),
        ([("a", "train", 0.5), ("b", "train", 2.0)], "a: train, weight 0.5, b: train, weight 2"),
        ([("a", "train", 1.0), ("a", "validation", 1.0)], "a comes twice"),
    ],
)
def test_what_cannot_be_joined_is_refused(choice, combined_datasets, choices, found):
    with pytest.raises(combined_datasets.InputError, match=found):
        combined_datasets.combined([choice(*each) for each in choices])


def test_a_role_needs_others_beside_it(choice, combined_datasets):
    alone = combined_datasets.require_alone
    alone(choice("a"))
    alone(combined_datasets.combined([choice("a"), choice("b", "validation")]))
    for given, found in (
        (choice("a", "validation"), "role is validation for a"),
        (choice("a", weight=0.5), "weight is 0.5 for a"),
    ):
        with pytest.raises(combined_datasets.InputError, match=found):
            alone(given)
