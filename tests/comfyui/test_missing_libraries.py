"""A ComfyUI whose Python lacks what training needs: the nodes appear, and Run says what to do."""

import os

import pytest
from comfyui.conftest import comfy_programs, make_data
from comfyui.graphs import CACHE, TRAIN, graph
from comfyui.server import ROOT, comfy_server

# A server of its own, for what changes with neither ComfyUI nor training.
pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

# Python runs it before anything else: two libraries are absent, and a third one is too old.
_POORER = """
import importlib.metadata, sys

for name in ("diffusers", "accelerate"):
    sys.modules[name] = None
installed = importlib.metadata.version


def version(name):
    if name in ("diffusers", "accelerate"):
        raise importlib.metadata.PackageNotFoundError(name)
    return "0.17.1" if name == "peft" else installed(name)


importlib.metadata.version = version
"""


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    folder, python = comfy_programs()
    place, data = (tmp_path_factory.mktemp(name) for name in ("python", "poor"))
    (place / "sitecustomize.py").write_text(_POORER, encoding="utf-8")
    paths = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        with comfy_server(folder, python, make_data(data)) as server:
            yield server, python


def test_every_node_appears_and_the_server_goes_on(poor):
    server, _ = poor
    pages = {page.stem for page in (ROOT / "js" / "docs").glob("*.md")}
    assert pages <= server.get("/object_info").keys()
    assert "Cannot import" not in server.log.read_text(errors="replace")
    server.run({"1": {"class_type": "InstrumentsNoteState", "inputs": {"number": 0}}})
    assert server.status(f"/adapter_trainer/state?node_id={TRAIN}") < 500


def test_run_says_what_is_missing_and_how_to_get_it(poor):
    server, python = poor
    failure = server.failure(server.result(server.queue(graph("poor"))))
    assert (failure["event"], failure["node_id"]) == ("execution_error", CACHE)
    found, expected, todo = failure["exception_message"].strip().splitlines()
    assert "diffusers is not installed" in found
    assert "accelerate is not installed" in found
    assert "peft 0.17.1 is older than 0.18" in found
    assert "torch" not in found
    assert "diffusers>=" in expected
    assert str(python) in todo
    assert "install.py" in todo
