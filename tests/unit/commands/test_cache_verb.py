"""The verb ``cache``: what it says, and its exit codes."""

import json

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


def damage(cache):
    path = next((cache / "latents").glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_cache_is_no_success(words, tmp_path, capsys):
    code, events = ran(capsys, *words)
    assert (code, events[-1]["encoded"]) == (0, 5)
    damage(tmp_path / "cache")
    code, events = ran(capsys, *words, "--verify")
    assert (code, len(events[-1]["damaged"]), events[-1]["encoded"]) == (1, 1, 1)


@pytest.mark.parametrize("flag", ["--collect", "--dry"])
def test_collecting_without_a_limit_is_refused(words, flag, capsys):
    assert main(["cache", *words, flag]) == 2
    assert "cache.max_gb" in capsys.readouterr().err
