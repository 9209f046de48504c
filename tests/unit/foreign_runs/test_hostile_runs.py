"""Run files of strangers that cannot be read are refused, in three parts."""

import pytest

from trainer_core.errors import InputError
from trainer_core.foreign_runs import open_document
from trainer_core.foreign_runs.documents import LARGEST, parse_document

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x0: 1}\n" + "".join(
    f"k{at}: &k{at} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for at, before in enumerate(["a", *(f"k{each}" for each in range(9))])
)

HOSTILE = {
    "bomb.yaml": (BOMB, "more than"),
    "merges.yaml": (MERGES, "more than"),
    "self.yaml": ("a: &a [*a]", "refers to itself"),
    "deep.yaml": ("[" * 3000, "cannot be read"),
    "deep.json": ("[" * 100_000, "nested too deeply"),
    "deep.toml": ("a = " + "[" * 5000, "cannot be read"),
    "code.yaml": ("a: !!python/object/apply:os.system ['true']", "could not determine"),
    "list.yaml": ("- 1\n- 2", "no names with values"),
    "word.yaml": ("hello", "no names with values"),
    "empty.yaml": ("", "no names with values"),
    "large.yaml": ("a: " + "x" * LARGEST, "larger than"),
    "latin.yaml": ("job: é".encode("latin-1"), "not UTF-8"),
    "half of a character.json": ('{"job": 1}'.encode("utf-16")[:-1], "not UTF-16"),
    "no mark.json": ('{"job": "é"}'.encode("utf-16-be"), "not UTF-8"),
    "twice.toml": ("a = 1\na = 2", "cannot be read"),
    "spaces.sh": (" \n\t\n", "starts a Python script"),
    "many.json": ("[" + "1," * 60_000 + "1]", "more than"),
    "quotes.sh": ("python a_train_network.py --dit 'open", "cannot be read"),
    "other.sh": ("rm -rf nothing", "starts a Python script"),
    "half.json": ('{"a": ', "cannot be read"),
    "half.toml": ("a = [", "cannot be read"),
    "null.yaml": ("a: \x00", "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_read_is_refused_in_three_parts(name, tmp_path):
    content, words = HOSTILE[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        open_document(tmp_path / name)
    assert words in error.value.found
    assert error.value.expected
    assert ("save it as UTF-8" in error.value.remedy) == ("UTF" in words)


def test_what_is_too_large_is_refused_unread(tmp_path):
    """A pasted text, a folder, and a file of 100 MB."""
    with pytest.raises(InputError, match="more than"):
        parse_document("pasted.yaml", "a: " + "x" * LARGEST)
    with pytest.raises(InputError, match="it is a folder"):
        open_document(tmp_path)
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(InputError, match="104857600 bytes, larger than"):
        open_document(large)
