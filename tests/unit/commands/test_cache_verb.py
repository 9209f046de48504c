"""The verb ``cache``: what it says, and its exit codes."""

import json
from pathlib import Path

import pytest
from PIL import Image

from trainer_core.cli import main


@pytest.fixture
def words(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name, color in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (64, 64), color).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(color)
    settings = {
        "base.path": "embedded",
        "dataset.path": folder,
        "dataset.resolution": 64,
        "cache.dir": tmp_path / "cache",
        "output.dir": tmp_path / "output",
        "preview.every": 0,
        "memory.device": "cpu",
    }
    return [f"{name}={value}" for name, value in settings.items()]


def ran(capsys, *words):
    capsys.readouterr()
    code = main(["cache", *words, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.exhaustive
def test_verify_says_what_was_damaged_and_mends_it(words, tmp_path, capsys):
    code, events = ran(capsys, *words)
    assert (code, events[-1]["encoded"]) == (0, 5)
    code, events = ran(capsys, *words, "--verify")
    assert (code, events[-1]["damaged"], events[-1]["encoded"]) == (0, [], 0)
    path = next((tmp_path / "cache" / "latents").glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, events = ran(capsys, *words, "--verify")
    assert (code, len(events[-1]["damaged"]), events[-1]["encoded"]) == (1, 1, 1)
    code, events = ran(capsys, *words, "--verify")
    assert (code, events[-1]["damaged"]) == (0, [])


@pytest.mark.exhaustive
def test_collect_keeps_what_the_run_needs_and_dry_removes_nothing(words, tmp_path, capsys):
    def files():
        return {path.name for path in (tmp_path / "cache").glob("*/*.safetensors")}

    _, events = ran(capsys, *words)
    first, needed = Path(events[-1]["manifest"]), files()
    # The same images at another size: what the first run made is not needed by the second one.
    other = [*words, "dataset.resolution=32"]
    assert ran(capsys, *other)[0] == 0
    both = files()
    assert both > needed
    code, events = ran(capsys, *other, "cache.max_gb=1e-9", "--collect", "--dry")
    assert code == 0
    assert files() == both
    # The list of a finished cache keeps what it names, so that it can be trained without images.
    assert ran(capsys, *other, "cache.max_gb=1e-9", "--collect")[0] == 0
    assert files() == both
    first.unlink()
    assert ran(capsys, *other, "cache.max_gb=1e-9", "--collect")[0] == 0
    assert files() < both
    code, events = ran(capsys, *other)
    assert (code, events[-1]["encoded"]) == (0, 0)


@pytest.mark.parametrize("flag", ["--collect", "--dry"])
def test_collecting_without_a_limit_is_refused(words, flag, capsys):
    assert main(["cache", *words, flag]) == 2
    assert "cache.max_gb" in capsys.readouterr().err
