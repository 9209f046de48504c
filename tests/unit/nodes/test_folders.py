"""No name from a graph leads out of the folders that it may name."""

import os
import posixpath
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tables import table

# Of the characters of names, tests/unit/test_file_names.py has the others.
REFUSED = table(__file__, "refused_names")


@pytest.fixture
def roots(tmp_path):
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "data" / "one.png").write_text("x")
    return {"data": [tmp_path / "data"]}


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_leads_out_is_refused(folders, errors, roots, case):
    with pytest.raises(errors.InputError) as caught:
        folders.resolve_below(REFUSED[case], roots, "folder")
    assert caught.value.found.startswith("folder: ")
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name", ["data/cats", "data/one.png", "data", "data/Zürich", "data/猫", "data/a b-c_d.e"]
)
def test_a_plain_name_is_found(folders, roots, name):
    path = roots["data"][0].parent / name
    if not path.exists():
        path.mkdir()
    assert folders.resolve_below(name, roots, "folder") == path


def test_a_link_that_leads_out_is_refused_and_one_that_stays_is_taken(folders, errors, roots):
    data = roots["data"][0]
    (data / "out").symlink_to(data.parent / "secret", target_is_directory=True)
    (data / "in").symlink_to(data / "cats", target_is_directory=True)
    (data.parent / "secret" / "inner").mkdir()
    for name in ("data/out", "data/out/inner"):
        with pytest.raises(errors.InputError, match="link"):
            folders.resolve_below(name, roots, "folder")
    assert folders.resolve_below("data/in", roots, "folder").resolve() == data / "cats"


def test_a_root_may_be_a_link_and_have_several_places(folders, tmp_path):
    (tmp_path / "disk" / "cats").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "disk", target_is_directory=True)
    places = [tmp_path / "empty", tmp_path / "linked"]
    found = folders.resolve_below("data/cats", {"data": places}, "folder")
    assert found == tmp_path / "linked" / "cats"


@given(st.text(max_size=30))
def test_whatever_is_accepted_stays_below(folders, errors, text):
    try:
        parts = folders.checked_parts(text, "name")
    except errors.InputError:
        return
    assert parts
    path = "/".join(["/top", *parts])
    assert posixpath.normpath(path) == path
    assert all(unicodedata.is_normalized("NFC", part) for part in parts)


def test_links_are_followed_where_models_lie(folders, errors, roots):
    """ComfyUI's own loaders follow them, a Hugging Face cache consists of them, and no workflow can
    make one; `..` and the like lead nowhere all the same."""
    data = roots["data"][0]
    (data.parent / "secret" / "model").write_text("x")
    (data / "link").symlink_to(data.parent / "secret" / "model")
    assert folders.resolve_below("data/link", roots, "source", links=True) == data / "link"
    for name in ("data/../secret/model", "data/cats/../link", str(data / "link")):
        with pytest.raises(errors.InputError, match="source: "):
            folders.resolve_below(name, roots, "source", links=True)


def test_a_folder_with_loose_accents_is_listed_and_found_and_none_is_made(folders, errors, roots):
    """As macOS writes the names of files."""
    name = unicodedata.normalize("NFD", "Zürich")
    (roots["data"][0] / name).mkdir()
    assert f"data/{name}" in folders.folders_below(roots)
    assert folders.resolve_below(f"data/{name}", roots, "folder").name == name
    with pytest.raises(errors.InputError, match="loose accents"):
        folders.checked_parts(name, "name")


def test_the_stamp_of_a_base_changes_with_its_files_alone(folders, tmp_path):
    base = tmp_path / "base"
    (base / "transformer").mkdir(parents=True)
    weights = base / "transformer" / "model.safetensors"
    weights.write_bytes(b"one")
    os.utime(base, ns=(1, 1))
    before = folders.base_stamp(base)
    (base / "notes.md").write_text("x")
    (base / "loop").symlink_to(base, target_is_directory=True)
    (base / "gone.safetensors").symlink_to(tmp_path / "none")
    with_loop = folders.base_stamp(base)
    (base / "loop").unlink()
    assert folders.base_stamp(base) == before
    assert with_loop != ""
    weights.write_bytes(b"three")
    os.utime(base, ns=(1, 1))
    larger = folders.base_stamp(base)
    os.utime(weights, ns=(5, 5))
    assert len({before, larger, folders.base_stamp(base)}) == 3
