"""The words of a command are sorted into files, settings and flags."""

from __future__ import annotations

import pytest

from trainer_core.commands import VERBS, Verb
from trainer_core.commands.arguments import Arguments, parse_arguments
from trainer_core.errors import InputError

_VERBS = {**VERBS, "copy": Verb("", "", "", "", options=("to",), switches=("overwrite",))}


def test_files_settings_and_flags_are_told_apart():
    verb, arguments = parse_arguments(
        ["train", "my run.yaml", "training.steps=5", "--json", "preview.prompts=[a]"], _VERBS
    )
    assert verb == "train"
    assert arguments == Arguments(
        ("my run.yaml",), ("training.steps=5", "preview.prompts=[a]"), json=True
    )


def test_everything_behind_two_dashes_is_a_file():
    _, arguments = parse_arguments(["inspect", "--", "--json", "rank=4.safetensors"], _VERBS)
    assert arguments == Arguments(("--json", "rank=4.safetensors"))


def test_a_path_with_an_equals_sign_behind_a_slash_is_a_file():
    _, arguments = parse_arguments(["inspect", "./rank=4.safetensors"], _VERBS)
    assert arguments.words == ("./rank=4.safetensors",)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["trian"], "train"),
        (["train", "--jsn"], "--json"),
        (["train", "--steps"], "train key=value"),
    ],
)
def test_unknown_word_is_refused_with_the_nearest(words, named):
    with pytest.raises(InputError) as caught:
        parse_arguments(words, _VERBS)
    assert named in caught.value.remedy


@pytest.mark.parametrize("to", [["--to", "lycoris"], ["--to=lycoris"], ["to=lycoris"]])
@pytest.mark.parametrize("overwrite", ["--overwrite", "overwrite=true"])
def test_a_verbs_own_flags_are_its_settings(to, overwrite):
    _, arguments = parse_arguments(["copy", "a", *to, overwrite, "b"], _VERBS)
    assert arguments == Arguments(("a", "b"), ("to=lycoris", "overwrite=true"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["copy", "--to"], "--to VALUE"),
        (["copy", "--overwite"], "--overwrite"),
        (["copy", "--from=x"], "copy key=value"),
        (["copy", "--overwrite=no"], "Did you mean --overwrite?"),
        (["train", "--overwrite"], "train key=value"),
    ],
)
def test_a_wrong_flag_of_a_verb_is_refused(words, named):
    with pytest.raises(InputError) as caught:
        parse_arguments(words, _VERBS)
    assert named in caught.value.remedy


def test_two_run_files_are_refused():
    with pytest.raises(InputError, match=r"two\.yaml"):
        Arguments(("one.yaml", "two.yaml")).config()


def test_missing_word_is_refused():
    with pytest.raises(InputError, match="an adapter file"):
        Arguments().word("an adapter file")


def test_own_settings_are_taken_in_order_and_the_rest_stays():
    taken, rest = Arguments(("r",), ("prompt=a=b", "seed=1", "prompt=c"), True).split(["prompt"])
    assert taken == {"prompt": ["a=b", "c"]}
    assert rest == Arguments(("r",), ("seed=1",), True)


def test_verb_without_run_file_refuses_other_settings():
    assert Arguments(settings=("kind=lora", "kind=loha")).only(["kind"]) == {"kind": "loha"}
    with pytest.raises(InputError, match="Did you mean kind"):
        Arguments(settings=("knd=lora",)).only(["kind", "task"])
