"""What the runs tab draws: each step once, thinned with its spikes, and only what is new."""

import json

import pytest


def lines(first, last, **values):
    steps = range(first, last + 1)
    made = ({"step": step, "grad_norm": step / 8, **values} for step in steps)
    return "".join(json.dumps(each) + "\n" for each in made)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(lines(1, 9000), encoding="utf-8")
    return tmp_path


def test_a_long_run_is_thinned_and_loses_no_spike(run, run_curves):
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    spike = json.dumps({"step": 4321, "grad_norm": 4321 / 8})
    changed = text.replace(spike, json.dumps({"step": 4321, "grad_norm": 1e6}))
    (run / "metrics.jsonl").write_text(changed, encoding="utf-8")
    points = run_curves.read_curve(run, "grad_norm", 0, "")["points"]
    assert len(points) <= 2000
    assert sum(count for *_, count in points) == 9000
    assert points[-1][0] == 9000
    assert max(high for _, _, _, high, _ in points) == 1e6
    step, mean, low, high, count = points[0]
    assert (step, count) == (8, 8)
    assert (mean, low, high) == (sum(range(1, 9)) / 8 / 8, 1 / 8, 1.0)


def test_of_a_run_that_goes_on_only_what_is_new_comes(run, run_curves):
    known = run_curves.read_curve(run, "grad_norm", 0, "")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(lines(9001, 9003) + '{"step": 9004, "gra')
    more = run_curves.read_curve(run, "grad_norm", 9000, known["course"])
    assert more["new"]
    assert [step for step, *_ in more["points"]] == [9001, 9002, 9003]
    # Too long ago for the end of the file, or never.
    late = run_curves.read_curve(run, "grad_norm", 3, known["course"])
    assert not late["new"]
    assert sum(count for *_, count in late["points"]) == 9003


def test_a_course_that_was_written_anew_comes_whole(run, run_curves):
    known = run_curves.read_curve(run, "grad_norm", 0, "")
    (run / "other").write_text(lines(1, 50), encoding="utf-8")
    (run / "other").replace(run / "metrics.jsonl")
    again = run_curves.read_curve(run, "grad_norm", 40, known["course"])
    assert (again["new"], len(again["points"])) == (False, 50)


def test_what_few_lines_have_and_what_no_number_is(tmp_path, run_curves):
    odd = '{"step": 3, "norms": {}}\n{"step": 4, "norms": 7}\n{"step": 5, "norms": {"a": 1e999}}\n'
    text = lines(1, 2) + odd + lines(6, 6, norms={"a": 1.0, "b": 3.0}, memory={"ram": 5, "peak": 9})
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert run_curves.read_curve(tmp_path, "norms", 0, "")["points"] == [(6, 2.0, 2.0, 2.0, 1)]
    assert run_curves.read_curve(tmp_path, "memory", 0, "")["points"] == [(6, 9, 9, 9, 1)]
    assert run_curves.read_curve(tmp_path, "step_seconds", 0, "")["points"] == []
    with pytest.raises(Exception, match="measured in no run"):
        run_curves.read_curve(tmp_path, "loss.__class__", 0, "")
