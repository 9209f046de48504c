"""What the system says of a path ends in three parts, whichever verb it is named to."""

import os

import pytest

from tests.fixtures.tables import table
from trainer_core.adapter_files.read.peft_config import WEIGHTS_NAME
from trainer_core.cli import main
from trainer_core.demo.run import dataset_folder

NOBODY = 65534


def refused(capsys, *words, code=2):
    assert main([*map(str, words)]) == code
    said = capsys.readouterr().err
    assert said.count("To do:") == 1, said
    return said


@pytest.mark.parametrize("commands", table(__file__, "bad_paths").values())
@pytest.mark.parametrize("bad", ["~nosuchuser/x.safetensors", "x" * 300 + ".safetensors"])
def test_a_path_that_the_system_refuses(commands, bad, lora, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    for words in commands:
        places = {"bad": bad, "in": lora, "out": tmp_path / "out.safetensors"}
        assert bad[:20] in refused(capsys, *(word.format(**places) for word in words.split()))
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_file_and_no_folder(lora, tmp_path, capsys):
    assert "not an ordinary file" in refused(
        capsys, "convert", "/dev/null", tmp_path, "--to", "kohya"
    )
    assert "empty" in refused(capsys, "convert", "", tmp_path / "x", "--to", "kohya")
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    words = ("convert", lora, pipe, "--to", "kohya", "--overwrite")
    assert "not an ordinary file" in refused(capsys, *words)
    assert pipe.is_fifo()


def test_an_output_that_no_folder_takes_is_refused_before_the_work(lora, tmp_path, capsys):
    file, images = tmp_path / "file", dataset_folder("own")
    file.write_bytes(b"")
    for words in (
        ("train", f"dataset.path={images}", f"output.dir={file}", f"cache.dir={tmp_path}/cache"),
        ("cache", f"dataset.path={images}", f"cache.dir={file}", "dataset.resolution=64"),
        ("sample", "prompt=a", f"output={file}"),
        ("convert", lora, file / "a.safetensors", "--to", "kohya"),
        ("resize", lora, file / "a.safetensors", "--rank", "1"),
        ("dataset", images, "--html", file / "a.html"),
    ):
        assert "file is not a folder" in refused(capsys, *words, code=1)
    assert {*tmp_path.iterdir()} == {file, lora.parent}


@pytest.fixture
def as_nobody():
    """Let the system check permissions, which it does not for root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def closed(lora, tmp_path):
    """A folder that nobody may look into, in one with a good adapter and a socket."""
    place = lora.parent / "closed"
    place.mkdir()
    (place / WEIGHTS_NAME).write_bytes(b"")
    (tmp_path / "out").mkdir()
    (tmp_path / "sealed").mkdir(0o555)
    for path in (tmp_path, *tmp_path.parents[:3], lora.parent, tmp_path / "out"):
        path.chmod(0o777)
    place.chmod(0)
    yield place
    os.seteuid(0)
    place.chmod(0o700)


def test_a_folder_without_permission(closed, lora, tmp_path, capsys, as_nobody):
    out = tmp_path / "out" / "a.safetensors"
    for words in (
        ("inspect", closed),
        ("convert", closed, out, "--to", "kohya"),
        ("convert", lora, closed / "x.safetensors", "--to", "kohya"),
        ("convert", lora, out, "--to", "kohya", "--base", closed),
        ("merge", closed, lora, out),
        ("resize", lora, closed / "x.safetensors", "--rank", "1"),
    ):
        assert "Permission denied" in refused(capsys, *words)
    words = ("convert", lora, tmp_path / "sealed" / "new" / "x.safetensors", "--to", "kohya")
    assert "sealed takes no files" in refused(capsys, *words, code=1)
    # One such folder does not keep the adapters beside it from being converted.
    assert main(["convert", str(lora.parent), str(out.parent), "--to", "kohya"]) == 1
    said = capsys.readouterr()
    assert "1 of 2 converted" in said.out
    assert f"{closed}" in said.err
    assert [path.name for path in out.parent.iterdir()] == ["lora.safetensors"]
