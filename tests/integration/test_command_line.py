"""The verbs on the embedded base. Only what gets a signal needs a process of its own."""

import contextlib
import io
import json
import signal
import subprocess
import sys

import pytest
from PIL import Image

from trainer_core.cli import main
from trainer_core.demo.run import dataset_folder
from trainer_core.families.run_files import run_file_template

_COMMAND = [sys.executable, "-m", "trainer_core"]
_SHORT = ("training.schedule.warmup_steps=0",)
_STOPPING = "Stopping after this step, and saving the state. Once more stops at once."


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a run file, and its cache filled by the `cache` verb."""
    folder = tmp_path_factory.mktemp("workplace")
    text = run_file_template("qwen_image", "tiny").replace(
        "path: images", f"path: {dataset_folder('generate').as_posix()}"
    )
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    first = events(folder, "cache", "run.yaml")[-1]
    again = events(folder, "cache", "run.yaml")[-1]
    assert (
        first["samples"] == again["samples"] == len(list(dataset_folder("generate").glob("*.png")))
    )
    assert first["encoded"] > 0
    assert again["encoded"] == 0
    return folder


def events(folder, *words: str, code: int = 0) -> list[dict]:
    """Run a verb in this process and read its JSON lines."""
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        assert main([*words, "--json"]) == code, out.getvalue()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_run_is_trained_cancelled_resumed_inspected_and_sampled(workplace):
    # An empty cache: the text encoder is loaded too, whose library would draw a bar.
    words = ["train", "run.yaml", "training.steps=100000", "output.name=long", "cache.dir=fresh"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = subprocess.Popen([*_COMMAND, *words, "--json"], cwd=workplace, text=True, **pipes)
    assert running.stdout is not None
    assert running.stderr is not None
    for line in running.stdout:
        if json.loads(line)["event"] == "step_done":
            running.send_signal(signal.SIGTERM)
            break
    rest = [json.loads(line) for line in running.stdout]
    assert running.stderr.read().splitlines() == ["", _STOPPING], "the libraries' words are in it"
    assert running.wait(timeout=120) == 0
    assert rest[-1]["event"] == "run_finished"
    assert rest[-1]["result"]["status"] == "cancelled"
    step = rest[-1]["result"]["step"]
    folder = workplace / "output" / "long" / "v0"
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["stopped_by"], record["step"]) == (
        "cancelled",
        "SIGTERM",
        step,
    )
    assert (folder / "checkpoints" / f"{step:06d}" / "state.json").is_file()

    words = ["training.steps=100000", "output.name=long", "resume=latest"]
    refused = events(workplace, "train", "run.yaml", *words, "adapter.rank=4", code=2)[-1]
    assert "adapter.rank" in refused["found"]

    target = step + 2
    words = [f"training.steps={target}", "output.name=short", "training.checkpoint_every=0"]
    finished = events(workplace, "train", "run.yaml", *_SHORT, *words)
    assert [e["result"]["step"] for e in finished if e["event"] == "step_done"][-1] == target
    adapter = finished[-1]["result"]["adapters"][0]

    report = events(workplace, "inspect", adapter)[-1]
    assert (report["kind"], report["family"]) == ("lokr", "qwen_image")
    assert report["ranks"]

    images = events(
        workplace,
        "sample",
        "run.yaml",
        f"adapter={adapter}",
        "prompt=a red diamond on a blue background",
        "steps=2",
        "output=drawn",
    )
    assert Image.open(images[0]["path"]).size == (64, 64)
