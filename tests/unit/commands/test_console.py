"""What the command line prints, on consoles that cannot show all of it."""

import io
import sys

import pytest
from PIL import Image

from tests.fixtures.combinations import some
from trainer_core.cli import main

NAMES = ("å 🐈", "前 \u202e\u0440\u0443\u0441", "naïve café")


@pytest.mark.parametrize("encoding", some(["cp1252", "ascii"], "ascii"))
def test_names_of_every_script_reach_a_console_of_few_letters(encoding, tmp_path, monkeypatch):
    """Windows' consoles and pipes have one page of letters."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / name / f"{name}.png")
        (tmp_path / name / f"{name}.txt").write_text(name, encoding="utf-8")
    run = tmp_path / f"{NAMES[0]}.yaml"
    run.write_text(f'dataset: {{path: "{tmp_path}", resolution: 64}}', encoding="utf-8")
    for words, code in {
        ("dataset", tmp_path, "dataset.resolution=64"): 0,
        ("doctor", run): 0,
        ("template", "--from", run): 2,
        ("inspect", run.with_suffix(".safetensors")): 2,
        ("train", run, f"adapter.start_from={run}"): 2,
    }.items():
        page = io.BytesIO()
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, io.TextIOWrapper(page, encoding, write_through=True))
        assert main([*map(str, words)]) == code, page.getvalue()
        assert b"\\U0001f408" in page.getvalue()
