"""The verbs on the embedded base, as a user calls them: in their own process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from PIL import Image

from trainer_core.config.template import run_file_template
from trainer_core.demo.settings import dataset_folder

_COMMAND = [sys.executable, "-m", "trainer_core"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a run file, and its cache filled by the `cache` verb."""
    folder = tmp_path_factory.mktemp("workplace")
    text = run_file_template("qwen_image", "tiny").replace(
        "path: pictures", f"path: {dataset_folder('generate').as_posix()}"
    )
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    first = events(folder, "cache", "run.yaml")[-1]
    again = events(folder, "cache", "run.yaml")[-1]
    assert first["samples"] == again["samples"] == 16
    assert first["encoded"] > 0
    assert again["encoded"] == 0
    return folder


def call(folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def events(folder, *words: str) -> list[dict]:
    done = call(folder, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_run_is_trained_cancelled_resumed_inspected_and_sampled(workplace):
    words = ["train", "run.yaml", "training.steps=100000", "output.name=long", "--json"]
    running = subprocess.Popen(
        [*_COMMAND, *words], cwd=workplace, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if json.loads(line)["event"] == "step_done":
            running.send_signal(signal.SIGINT)
            break
    rest = [json.loads(line) for line in running.stdout]
    assert running.wait(timeout=120) == 1
    assert rest[-1]["event"] == "run_finished"
    assert rest[-1]["result"]["status"] == "cancelled"
    step = rest[-1]["result"]["step"]

    words = ["training.steps=100000", "output.name=long", "resume=latest"]
    refused = call(workplace, "train", "run.yaml", *words, "adapter.rank=4")
    assert refused.returncode == 2
    assert "adapter.rank" in refused.stderr

    target = step + 2
    words = [f"training.steps={target}", "output.name=short", "training.checkpoint_every=0"]
    finished = events(workplace, "train", "run.yaml", *words)
    assert [e["result"]["step"] for e in finished if e["event"] == "step_done"][-1] == target
    adapter = finished[-1]["result"]["adapters"][0]

    report = events(workplace, "inspect", adapter)[-1]
    assert (report["kind"], report["family"]) == ("lokr", "qwen_image")
    assert report["ranks"]

    pictures = events(
        workplace,
        "sample",
        "run.yaml",
        f"adapter={adapter}",
        "prompt=a red star on a blue background",
        "steps=2",
        "output=drawn",
    )
    assert Image.open(pictures[0]["path"]).size == (64, 64)


def test_text_output_names_facts_and_paths(workplace):
    done = call(workplace, "train", "run.yaml", "training.steps=2", "output.name=text")
    assert done.returncode == 0, done.stderr
    for fact in ("Family:", "Base:", "Layers:", "trainable parameters", "16 at 64x64", "step 2/2"):
        assert fact in done.stdout
    assert str(workplace / "output" / "text" / "v0") in done.stdout
    assert "\r" not in done.stdout
