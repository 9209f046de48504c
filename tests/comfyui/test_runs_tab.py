"""What the runs tab asks the server: rows, one run, notes, and hostile requests."""

import itertools
import json
import random
import urllib.parse

import pytest
from comfyui.graphs import STEPS, graph, run_folder

pytestmark = pytest.mark.comfy

ROUTES = "/adapter_trainer/runs"
NAMES = (
    *(
        "",
        ".",
        "..",
        "/",
        "a/v0",
        "../../etc",
        "tab/v0/..",
        "tab/v0/checkpoints",
        "tab/v9",
        "C:\\x",
    ),
    *(
        "tab/v0\x00",
        "tab\\v0",
        "%2e%2e/v0",
        "~/v0",
        "tab//v0",
        "x" * 5000,
        "\u202e/v0",
        "tab/v0.json",
    ),
)
VALUES = (
    None,
    True,
    -1,
    1e400,
    "",
    "x" * 9000,
    [],
    ["x" * 99] * 99,
    [[]],
    {},
    {"run": {}},
    "\ud800",
)


def shown(server, run):
    return server.get(f"{ROUTES}/one?{urllib.parse.urlencode({'run': run})}")


def row(server, run):
    (found,) = (each for each in server.get(f"{ROUTES}/list")["runs"] if each["run"] == run)
    return found


def test_a_run_is_listed_shown_noted_and_copied(server):
    server.run(graph("tab"))
    folder = run_folder(server, "tab")
    run = f"tab/{folder.name}"
    found = row(server, run)
    assert (found["status"], found["step"], found["steps"]) == ("done", STEPS, STEPS)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert found["loss"] == pytest.approx(sum(losses) / len(losses))
    detail = shown(server, run)
    assert [point[1] for point in detail["run"]["points"]] == losses
    assert detail["settings"]["output.name"] == "tab"
    assert detail["adapter"] == str(folder / "tab.safetensors")
    note = {"run": run, "note": "a note", "tags": ["one"], "favourite": True, "other": 1}
    status, kept = server.post(f"{ROUTES}/note", note)
    assert (status, kept) == (200, {key: note[key] for key in ("note", "tags", "favourite")})
    assert row(server, run)["tags"] == ["one"]
    names = [server.post(f"{ROUTES}/use", {"run": run})[1]["lora"] for _ in range(2)]
    assert names[0] == names[1]
    copied = server.data / "models" / "loras" / names[0]
    assert copied.read_bytes() == (folder / "tab.safetensors").read_bytes()
    # Notes and copies change nothing of what the run goes on from.
    server.run(graph("tab"))
    assert run_folder(server, "tab") == folder


def test_damaged_runs_are_listed_with_their_reason(server):
    folder = server.data / "output" / "adapter_trainer" / "torn" / "v0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "done", "st', encoding="utf-8")
    (folder / "metrics.jsonl").write_bytes(b'\xff\xfe{"step": 1, "loss": NaN}\n{"step"')
    (folder / "notes.json").write_text('{"note": 7, "tags": [1, "kept"]}', encoding="utf-8")
    found = row(server, "torn/v0")
    assert (found["status"], found["tags"]) == ("damaged", ["kept"])
    assert "run.json cannot be read" in found["reason"]
    status, _ = server.post(f"{ROUTES}/note", {**found, "favourite": True})
    assert (status, row(server, "torn/v0")["note"]) == (200, "")
    assert server.status(f"{ROUTES}/one?run=torn/v0") == 404
    status, answer = server.post(f"{ROUTES}/use", {"run": "torn/v0"})
    assert status == 404
    assert "no adapter file" in answer["reason"]


def test_hostile_requests_are_refused_and_write_nothing(server):
    def files():
        return {path: path.stat().st_mtime_ns for path in server.data.rglob("*") if path.is_file()}

    before, drawn = files(), random.Random(3)
    for name in NAMES:
        query = urllib.parse.urlencode({"run": name}, errors="surrogatepass")
        assert server.status(f"{ROUTES}/one?{query}") == 404, name
    pairs = list(itertools.product(("note", "use"), NAMES, VALUES))
    for route, name, value in [*pairs, *(("note", each, None) for each in VALUES)]:
        other = drawn.choice(VALUES)
        request = {"run": name, "note": value, "tags": other, "favourite": other}
        status, answer = server.post(f"{ROUTES}/{route}", request)
        assert status == 404, (route, name, value)
        assert answer["reason"]
    server_log = server.data / "server.log"
    changed = {path for path, time in files().items() if before.get(path) != time}
    assert changed <= {server_log}
