"""A run file that is saved with its cache takes along the adapter that the run starts from."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from comfyui.conftest import comfy_programs
from comfyui.server import ROOT
from integration.runs import run_config

from trainer_core.config.reading import dump_config, load_config
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare import prepare, save_manifest

pytestmark = pytest.mark.comfy

SHORT = {"steps": 3}


def saved(config, folder):
    comfyui, python = comfy_programs()
    run_file = folder / "given.yaml"
    run_file.write_text(dump_config(config))
    script = Path(__file__).with_name("run_file_process.py")
    done = subprocess.run(
        [python, script, ROOT, run_file],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=comfyui,
        env={**os.environ, "PYTHONPATH": str(comfyui)},
    )
    lines = [line for line in done.stdout.splitlines() if line.split()[0] in ("SAVED", "REFUSED")]
    assert len(lines) == 1, done.stdout[-1000:] + done.stderr[-3000:]
    return lines[0].split(" ", 1)


def test_the_folder_can_be_moved_and_trained_and_a_missing_file_is_refused(tmp_path):
    cache = tmp_path / "cache"
    config = run_config(tmp_path / "first", cache, training=SHORT)
    first = train(config)
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    manifest = save_manifest(config, prepared)
    start = tmp_path / "loras" / "mine.safetensors"
    start.parent.mkdir()
    shutil.copyfile(first.adapters[0], start)
    given = run_config(
        tmp_path / "second",
        cache,
        training=SHORT,
        cache={"manifest": str(manifest)},
        adapter={"start_from": str(start)},
    )
    verdict, path = saved(given, tmp_path)
    assert verdict == "SAVED"
    moved = tmp_path / "elsewhere"
    Path(path).parent.rename(moved)
    content = start.read_bytes()
    start.unlink()
    assert saved(given, tmp_path) == ["REFUSED", f"adapter.start_from: there is no file {start}"]
    shutil.rmtree(cache)
    assert "mine" not in (moved / "run.yaml").read_text()
    config = load_config(moved / "run.yaml")
    assert Path(config.adapter.start_from).read_bytes() == content
    assert train(config).step == 3
