"""A run file saved with its cache takes along the adapters that the run starts from or needs."""

import shutil
from pathlib import Path

import pytest
import torch
from integration.runs import run_config

from trainer_core.config.read_run_file import dump_config, load_config
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest

pytestmark = pytest.mark.comfy

SHORT = {"steps": 3}


def saved(comfy_host, config, folder):
    run_file = folder / "given.yaml"
    run_file.write_text(dump_config(config))
    said = comfy_host.run("run_file_process.py", run_file, folder=comfy_host.root)
    lines = [line for line in said.splitlines() if line.startswith(("SAVED ", "REFUSED "))]
    assert len(lines) == 1, said[-3000:]
    return lines[0].split(" ", 1)


@pytest.mark.exhaustive
def test_the_folder_can_be_moved_and_trained_and_a_missing_file_is_refused(comfy_host, tmp_path):
    cache = tmp_path / "cache"
    config = run_config(tmp_path / "first", cache, training=SHORT)
    first = train(config)
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    manifest = save_manifest(config, prepared)
    start = tmp_path / "loras" / "mine.safetensors"
    start.parent.mkdir()
    shutil.copyfile(first.adapters[0], start)
    turbo = start.with_name("turbo.safetensors")
    shutil.copyfile(start, turbo)
    given = run_config(
        tmp_path / "second",
        cache,
        training=SHORT,
        cache={"manifest": str(manifest)},
        adapter={"start_from": str(start)},
        base={"adapters": [{"path": str(turbo), "strength": 0.5, "when": "training"}]},
    )
    verdict, path = saved(comfy_host, given, tmp_path)
    assert verdict == "SAVED"
    moved = tmp_path / "elsewhere"
    Path(path).parent.rename(moved)
    content = start.read_bytes()
    start.unlink()
    refused = f"adapter.start_from: there is no file {start}"
    assert saved(comfy_host, given, tmp_path) == ["REFUSED", refused]
    start.write_bytes(content)
    turbo.unlink()
    refused = f"base.adapters.0: there is no file {turbo}"
    assert saved(comfy_host, given, tmp_path) == ["REFUSED", refused]
    shutil.rmtree(cache)
    start.unlink()
    assert "mine" not in (moved / "run.yaml").read_text()
    config = load_config(moved / "run.yaml")
    assert Path(config.adapter.start_from).read_bytes() == content
    (part,) = config.base.adapters
    assert Path(part.path).is_relative_to(moved)
    assert (Path(part.path).read_bytes(), part.strength, part.when) == (content, 0.5, "training")
    assert train(config).step == 3
