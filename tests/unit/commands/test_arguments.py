"""The words of a command are sorted into files, settings and flags."""

import pytest

from trainer_core.commands import VERBS, Verb
from trainer_core.commands.arguments import Arguments, parse_arguments
from trainer_core.errors import InputError

_VERBS = {**VERBS, "copy": Verb("", "", "", "", options=("to",), switches=("overwrite",))}


@pytest.mark.parametrize("to", [["--to", "lycoris"], ["--to=lycoris"], ["to=lycoris"]])
@pytest.mark.parametrize("overwrite", ["--overwrite", "overwrite=true"])
def test_a_verbs_own_flags_are_its_settings(to, overwrite):
    _, arguments = parse_arguments(["copy", "a", *to, overwrite, "b"], _VERBS)
    assert arguments == Arguments(("a", "b"), ("to=lycoris", "overwrite=true"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["train", "my run.yaml", "training.steps=5", "--json", "preview.prompts=[a]"],
            Arguments(("my run.yaml",), ("training.steps=5", "preview.prompts=[a]"), json=True),
        ),
        # Everything behind two dashes is a file, and so is a path with a slash.
        (
            ["inspect", "--", "--json", "rank=4.safetensors"],
            Arguments(("--json", "rank=4.safetensors")),
        ),
        (["inspect", "./rank=4.safetensors"], Arguments(("./rank=4.safetensors",))),
    ],
)
def test_files_settings_and_flags_are_told_apart(words, expected):
    assert parse_arguments(words, _VERBS) == (words[0], expected)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["trian"], "train"),
        (["train", "--jsn"], "--json"),
        (["train", "--steps"], "train key=value"),
        (["copy", "--to"], "--to VALUE"),
        (["copy", "--to", "--overwrite"], "--to=VALUE"),
        (["copy", "--overwite"], "--overwrite"),
        (["copy", "--from=x"], "copy key=value"),
        (["copy", "--overwrite=no"], "Did you mean --overwrite?"),
        (["train", "--overwrite"], "train key=value"),
    ],
)
def test_a_wrong_word_is_refused_with_the_nearest(words, named):
    with pytest.raises(InputError) as caught:
        parse_arguments(words, _VERBS)
    assert named in caught.value.remedy
