"""What the runs tab asks the server: rows, one run, notes, and hostile requests."""

import itertools
import json
import random
import shutil
import urllib.parse

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import (
    SETTINGS,
    STEPS,
    TRAIN,
    changed,
    checkpoints,
    forget_panel,
    graph,
    hold,
    record,
    release,
    run_folder,
    runs,
    wait_until_held,
)

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
        ".trash/0123456789abcdef/v0",
        "own/vacation",
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


def place_run(folder):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "done", "step": 9}', encoding="utf-8")


def test_hostile_requests_are_refused_and_write_nothing(server):
    def files():
        return {path: path.stat().st_mtime_ns for path in server.data.rglob("*") if path.is_file()}

    own = server.data / "output" / "adapter_trainer" / "own" / "v0"
    place_run(own)
    (own / "checkpoints").mkdir()
    place_run(own.parent / "vacation")
    place_run(own.parents[1] / ".trash/0123456789abcdef/v0")
    before, drawn = files(), random.Random(3)
    assert "own/vacation" not in [each["run"] for each in server.get(f"{ROUTES}/list")["runs"]]
    for route, name in itertools.product(("one", "curve", "page"), NAMES):
        asked = {"run": name, "name": "norms"}
        query = urllib.parse.urlencode(asked, errors="surrogatepass")
        assert server.status(f"{ROUTES}/{route}?{query}") == 404, name
    for name, after in itertools.product(NAMES, ("-1", "x", "9" * 500, "\u0661")):
        asked = {"run": "own/v0", "name": name, "after": after, "course": name[:99]}
        assert server.status(f"{ROUTES}/curve?{urllib.parse.urlencode(asked)}") == 404
        asked = {**asked, "name": "memory"}
        assert server.get(f"{ROUTES}/curve?{urllib.parse.urlencode(asked)}")["points"] == []
    odd = [*VALUES, *([each] for each in NAMES), ["checkpoints/.."], ["/"]]
    for value in odd:
        for route, request in (
            ("clean", {"run": "own/v0", "parts": value}),
            ("clean", {"run": value, "parts": ["run"]}),
            ("restore", {"id": value}),
            ("open", {"run": value}),
        ):
            status, answer = server.post(f"{ROUTES}/{route}", request)
            assert status == 404, (route, value)
            assert answer["reason"]
    for name in NAMES:
        assert server.post(f"{ROUTES}/restore", {"id": name})[0] == 404
        for route in ("clean", "open"):
            request = {"run": name, "parts": ["run"]}
            assert server.post(f"{ROUTES}/{route}", request)[0] == 404, (route, name)
    for value in (each for each in VALUES if not isinstance(each, dict)):
        assert server.post(f"{ROUTES}/empty", value)[0] == 404
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


def test_what_is_cleaned_up_is_in_the_trash_until_it_is_put_back(server):
    server.run(graph("waste"))
    folder = run_folder(server, "waste")
    run = f"waste/{folder.name}"
    disk = shown(server, run)["disk"]
    assert (disk["checkpoints"]["count"], disk["adapters"]["count"]) == (1, 1)
    assert server.get(f"{ROUTES}/sizes")[run] == sum(each["bytes"] for each in disk.values())
    status, answer = server.post(f"{ROUTES}/clean", {"run": run, "parts": ["checkpoints"]})
    assert status == 200
    (entry,) = answer["trash"]
    assert (entry["run"], entry["parts"]) == (run, ["checkpoints"])
    assert shown(server, run)["checkpoints"] == []
    status, answer = server.post(f"{ROUTES}/restore", {"id": entry["id"]})
    assert (status, answer) == (200, {"run": run, "trash": []})
    assert checkpoints(folder) == [STEPS]
    # It is the same run still: nothing is trained again.
    server.run(graph("waste"))
    assert run_folder(server, "waste") == folder

    server.post(f"{ROUTES}/clean", {"run": run, "parts": ["run"]})
    assert run not in [each["run"] for each in server.get(f"{ROUTES}/list")["runs"]]
    assert server.post(f"{ROUTES}/empty", {}) == (200, {"trash": []})
    assert runs(server, "waste") == []


def test_a_run_goes_on_from_an_earlier_checkpoint(server):
    nodes = changed(graph("earlier"), SETTINGS, checkpoint_every=4)
    server.run(nodes)
    folder = run_folder(server, "earlier")
    assert checkpoints(folder) == [4, STEPS]
    wish = {"node_id": TRAIN, "wish": "continue", "run": f"earlier/{folder.name}"}
    status, answer = server.post("/adapter_trainer/wish", {**wish, "step": 5, "prompt": nodes})
    assert status == 409
    assert "no checkpoint of step 5" in answer["reason"]
    status, answer = server.post("/adapter_trainer/wish", {**wish, "step": 4, "prompt": nodes})
    assert (status, "from step 4" in answer["reason"]) == (200, True)
    before = (folder / "earlier.safetensors").stat().st_mtime_ns
    server.run(nodes)
    assert (folder / "earlier.safetensors").stat().st_mtime_ns > before
    assert record(folder)["step"] == STEPS
    assert run_folder(server, "earlier") == folder


@pytest.mark.exhaustive
def test_the_queue_says_what_runs_and_waits_and_one_that_fails_stops_no_other(server):
    forget_panel(server)
    server.run(graph("queued"))
    fragile = write_images(server.data / "datasets" / "fragile")
    hold(server, 3)
    first = server.queue(graph("queued", train={"seed": 5}))
    wait_until_held(server)
    failing = server.queue(graph("failing", dataset={"folder": "datasets/fragile"}))
    next_one = server.queue(graph("queued", train={"seed": 6}))
    unwanted = server.queue(graph("unwanted", train={"steps": 1000}))
    shutil.rmtree(fragile)

    rows = server.get(f"{ROUTES}/queue")["queue"]
    assert [each["prompt_id"] for each in rows] == [first, failing, next_one, unwanted]
    assert [each["runs"] for each in rows] == [True, False, False, False]
    trainings = [training for each in rows for training in each["trainings"]]
    assert [each["name"] for each in trainings] == ["queued", "failing", "queued", "unwanted"]
    assert [each["steps"] for each in trainings] == [STEPS, STEPS, STEPS, 1000]
    assert [each["seconds"] is None for each in trainings] == [False, True, False, True]
    assert server.post("/queue", {"delete": [unwanted]})[0] == 200
    release(server)
    ends = [server.result(each)["status"]["status_str"] for each in (first, failing, next_one)]
    assert ends == ["success", "error", "success"]
    assert server.get(f"{ROUTES}/queue")["queue"] == []
    assert runs(server, "unwanted") == []
