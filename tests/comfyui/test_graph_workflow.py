"""The workflow of a run through the real server: where it is kept, where not, and who may ask."""

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request

import pytest
from comfyui.graphs import graph, run_folder
from safetensors import safe_open

pytestmark = pytest.mark.comfy

SECRET = "SECRET"
WORKFLOW = {
    "id": "one",
    "nodes": [{"id": 1, "type": "Note", "widgets_values": [f"C:\\Users\\{SECRET}\\a.png é"]}],
    "links": [],
}
_KEPT = ("workflow.json", "prompt.json")


def run(server, nodes, workflow=WORKFLOW):
    """Run a graph as the page queues it."""
    extra = {} if workflow is None else {"extra_pnginfo": {"workflow": workflow, "other": SECRET}}
    given = {"prompt": nodes, "client_id": server.client, "extra_data": extra}
    status, answer = server.post("/prompt", given)
    assert status == 200, answer
    result = server.result(answer["prompt_id"])
    assert result["status"]["status_str"] == "success", server.failure(result)


def small(name, **changes):
    return graph(name, train={"steps": 1}, **changes)


def kept(folder):
    """What lies beside the run, by file."""
    found = [folder / name for name in _KEPT if (folder / name).exists()]
    return {path.name: json.loads(path.read_text(encoding="ascii")) for path in found}


def header(path):
    with safe_open(str(path), framework="pt") as file:
        return file.metadata()


def ask(server, name):
    """Status, value and headers of what the button asks for."""
    address = f"{server.address}/adapter_trainer/workflow?{urllib.parse.urlencode({'run': name})}"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers


@pytest.fixture(scope="module")
def shared(shared_server):
    """A run whose files tell nothing, and the graph of it."""
    nodes = small("workflow-shareable")
    run(shared_server, nodes)
    return run_folder(shared_server, "workflow-shareable"), nodes


def test_a_shareable_file_has_no_workflow_and_the_page_gets_it(server, shared):
    folder, nodes = shared
    assert kept(folder) == {"workflow.json": WORKFLOW, "prompt.json": nodes}
    (path,) = folder.glob("*.safetensors")
    assert header(path)["modelspec.architecture"] == "Qwen-Image/lora"
    assert not {"workflow", "prompt"} & header(path).keys()
    assert SECRET not in json.dumps(header(path))
    status, answer, headers = ask(server, f"workflow-shareable/{folder.name}")
    assert (status, answer) == (200, WORKFLOW)
    assert headers["Content-Type"].startswith("application/json")
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_full_file_has_it_and_so_has_what_save_adapter_makes_of_it(server):
    nodes = small("workflow-full", behind=True, settings={"metadata": "full"})
    run(server, nodes)
    (path,) = run_folder(server, "workflow-full").glob("*.safetensors")
    for each in (path, server.data / "models" / "loras" / "workflow-full.safetensors"):
        assert json.loads(header(each)["workflow"]) == WORKFLOW
        assert json.loads(header(each)["prompt"]) == nodes


def test_nothing_is_kept_where_comfyui_may_not_keep_it(server):
    """With --disable-metadata."""
    server.post("/instruments/metadata", {"kept": False})
    try:
        run(server, small("workflow-disabled", settings={"metadata": "full"}))
    finally:
        server.post("/instruments/metadata", {"kept": True})
    folder = run_folder(server, "workflow-disabled")
    assert kept(folder) == {}
    (path,) = folder.glob("*.safetensors")
    assert not {"workflow", "prompt"} & header(path).keys()
    status, answer, _ = ask(server, f"workflow-disabled/{folder.name}")
    assert (status, answer) == (404, {"reason": "workflow-disabled/v0 has no workflow"})


def test_a_name_that_is_no_run_is_refused(server, shared):
    names = ("", "..", "none/v0", "workflow-shareable", "../adapter_trainer/workflow-shareable/v0")
    others = ("workflow-shareable\\v0", "/etc", "C:/x", "a\0b", "\x1b[2J", "é" * 200, "x" * 5000)
    for name in names + others:
        status, answer, _ = ask(server, name)
        assert status == 404, name
        assert list(answer) == ["reason"]
        assert str(server.data) not in answer["reason"]


def test_a_link_out_of_the_run_and_what_is_too_large_are_not_sent(server, shared, tmp_path):
    folder, outside = shared[0].parent / "v92", tmp_path / "outside.json"
    shutil.copytree(shared[0], folder)
    outside.write_text(f'"{SECRET}"')
    (folder / "workflow.json").unlink()
    (folder / "workflow.json").symlink_to(outside)
    status, answer, _ = ask(server, "workflow-shareable/v92")
    assert status == 404
    assert "link" in answer["reason"]
    assert SECRET not in json.dumps(answer)
    (folder / "workflow.json").unlink()
    with (folder / "workflow.json").open("wb") as file:
        file.truncate(17 * 2**20)
    status, answer, _ = ask(server, "workflow-shareable/v92")
    reason = "workflow.json of workflow-shareable/v92 is too large"
    assert (status, answer) == (404, {"reason": reason})
    shutil.rmtree(folder)
