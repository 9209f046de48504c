"""What the panel reads of a run's folder: thinned, in order, and nothing of a damaged end."""

import json

import pytest


def write_steps(folder, count):
    lines = [
        json.dumps({"step": step, "loss": 1 / step, "learning_rate": 0.1, "step_seconds": 0.5})
        for step in range(1, count + 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_record(folder, **values):
    (folder / "run.json").write_text(json.dumps(values), encoding="utf-8")


def write_sample(folder, step, index):
    path = folder / "samples" / f"{step:06d}" / f"{index}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")


def place(path):
    return {"filename": path.name, "subfolder": path.parent.name, "type": "output"}


SKIPPED = '{"step": 5, "learning_rate": 0.1, "step_seconds": 1, "skipped": true}\n'
NAN = '{"step": 4, "loss": NaN, "learning_rate": 1e999, "step_seconds": 1}\n'


@pytest.mark.parametrize("end", ['{"step": 4, "lo', "[]\n", '{"step": "x"}\n', "\x00\n", NAN])
@pytest.mark.parametrize(("before", "step"), [("", 3), (SKIPPED, 5)])
def test_what_a_crash_left_is_passed_over(run_history, tmp_path, before, step, end):
    write_steps(tmp_path, 3)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(before + end)
    assert run_history.read_history(tmp_path, place, ()).step == step


def test_of_many_measurements_the_lowest_and_the_last_stay(run_history):
    many = [(step, 1.0, None) for step in range(5 * run_history.POINTS)]
    many[4321] = (4321, 0.25, None)
    thinned = run_history.thinned_losses(many)
    assert len(thinned) <= run_history.POINTS
    assert thinned == sorted(thinned)
    assert {many[4321], many[-1]} <= set(thinned)


def test_images_come_in_order_with_the_prompts_that_they_were_made_with(run_history, tmp_path):
    for step in (100, 0, 20):
        for index in (10, 0, 2):
            write_sample(tmp_path, step, index)
    write_sample(tmp_path, 7, 0)
    (tmp_path / "samples" / "000007" / "x.png").write_bytes(b"x")
    change = {"step": 20, "setting": "preview.prompts", "from": ["old"], "to": ["new"]}
    write_record(tmp_path, changes=[{"step": 3, "setting": "preview.every"}, change])
    samples = run_history.read_history(tmp_path, place, ["new", "", "third"]).samples
    assert [(each["step"], each["index"]) for each in samples] == [
        *((0, index) for index in (0, 2, 10)),
        (7, 0),
        *((20, index) for index in (0, 2, 10)),
        *((100, index) for index in (0, 2, 10)),
    ]
    prompts = {(each["step"], each["index"]): each["prompt"] for each in samples}
    assert [prompts[step, 0] for step in (0, 7, 20, 100)] == ["old", "old", "old", "new"]
    assert (prompts[20, 2], prompts[100, 2], prompts[100, 10]) == ("", "third", "")
    assert samples[0]["filename"] == "0.png"


BEST, NAMES = {"step": 6, "loss": 0.5}, ("status", "step", "best", "reason")


@pytest.mark.parametrize(
    ("record", "status", "told"),
    [
        (("done", 9), "done", "9 steps"),
        (("done", 4), "stopped", "step 4 of 9"),
        (("done", 9, BEST), "done", "held-out images: step 6"),
        (("cancelled", 4), "cancelled", "step 4"),
        (("running", 4), "lost", "checkpoint is of step 4"),
        (("failed", 0, None, "a full disk"), "failed", "Run begins anew. a full disk"),
    ],
)
def test_how_a_run_has_ended(run_history, tmp_path, record, status, told):
    write_record(tmp_path, steps=9, **dict(zip(NAMES, record, strict=False)))
    ending = run_history.read_ending(tmp_path)
    assert (ending.status, ending.steps) == (status, 9)
    assert told in ending.message


@pytest.mark.parametrize("text", ["[]", "{", '{"status": "done", "step": "x"}', "{}"])
def test_a_damaged_record_is_refused(run_history, errors, tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(errors.InputError, match=r"run\.json"):
        run_history.read_ending(tmp_path)


def test_whoever_asks_makes_a_node_go_on(rerun_stamps):
    count, going = rerun_stamps.ContinueCount(), rerun_stamps.Continuation(steps=9)
    count.note("1", going)
    count.note("1", going)
    assert (count.count("1"), count.count("2")) == (2, 0)
    queued = {"prompt": {"1": {}}, "extra_data": {"other": 1}}
    count.bind(queued)
    extra = queued["extra_data"]
    assert extra["other"] == 1
    assert [count.take("1", extra).steps, count.take("1", extra).steps] == [9, 0], "asked for once"
    # It ends with its prompt: one that lacks the node, is taken back, or was never queued.
    for first in ({"prompt": {"2": {}}}, {"prompt": {"1": {}}}, None, {"prompt": 5}):
        count.note("1", going)
        count.bind(first)
        plain = {"prompt": {"1": {}}}
        count.bind(plain)
        assert "extra_data" not in plain
        assert count.take("1", plain.get("extra_data")).steps == 0
    for number in range(2, 1100):
        count.note(str(number), going)
    assert (count.count("1"), count.count("1099")) == (0, 1)


def test_a_run_that_goes_back_forgets_what_it_makes_again(run_state):
    state = run_state.RunState("7", "p1", "adapter", 9)
    for step in range(1, 7):
        state.add_point((step, 1.0 / step, 0.1))
    for step in (0, 2, 4, 6):
        state.add_held_out((step, 0.5, None))
        state.samples.append({"step": step, "index": 0})
    state.step = 6
    before = state.snapshot()
    assert before["returns"] == 0
    state.go_back(4)
    after = state.snapshot()
    assert (after["step"], after["returns"]) == (4, 1)
    assert [each[0] for each in after["points"]] == [1, 2, 3, 4]
    assert [each[0] for each in after["held_out"]] == [0, 2, 4]
    assert [each["step"] for each in after["samples"]] == [0, 2, 4]
    assert state.progress([])["returns"] == 1, "also what is sent with each step"
    state.go_back(0)
    again = state.snapshot()
    assert (again["points"], again["returns"]) == ([], 2)
    assert [each[0] for each in again["held_out"]] == [0]
    assert before["points"][-1][0] == 6, "what was sent stays as it was"


def test_of_what_a_run_has_kept_only_what_fits_is_taken(run_state):
    state = run_state.RunState("7", "p1", "adapter", 9)
    state.choices, state.notes = [{"setting": "rank"}], ["a note"]
    again = run_state.RunState("8", "p2", "adapter", 9)
    again.take_kept(state.kept())
    assert (again.choices, again.notes) == (state.choices, state.notes)
    again.take_kept(
        {"choices": "all", "notes": {"a": 1}, "memory": [], "run": "other/v0", "warnings": [3]}
    )
    assert (again.notes, again.memory, again.run) == (["a note"], None, "")
    assert again.snapshot()["warnings"] == []
    assert again.choices == state.choices
