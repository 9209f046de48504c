"""When a demonstration counts as missed, and when as broken."""

import json

import pytest

from trainer_core.cli import main
from trainer_core.commands.runs import learned_text
from trainer_core.demo import run as demo_run
from trainer_core.demo.run import LEARNED, DemoSummary


def summary(learned=0.9, kept=0.8, kind="lokr", task="generate"):
    return DemoSummary(kind, task, 0.02, learned, kept, 60.0, "a.safetensors", ("p.png",))


@pytest.mark.parametrize(("learned", "missed"), [(1.0, False), (0.8, False), (0.78, True)])
def test_what_is_missed_is_told_with_its_bar(learned, missed, tmp_path):
    found = summary(learned=learned)
    assert LEARNED.text(found) == ("below the bar of 80%" if missed else "bar: 80%")
    text = learned_text(found, tmp_path)
    assert LEARNED.text(found) in text
    assert "(bar: 75%)" in text
    assert "below the bar of 75%" in learned_text(summary(kept=0.74), tmp_path)


@pytest.mark.parametrize(("learned", "code"), [(0.86, 0), (0.7, 0), (0.1, 1)])
def test_exit_code_and_report_of_the_command(learned, code, monkeypatch, capsys):
    """The training itself is left out: what it gave is put in its place."""
    monkeypatch.setattr(demo_run, "run_demo", lambda *given: summary(learned))
    assert main(["demo"]) == code
    captured = capsys.readouterr()
    assert f"{learned:.0%} with the adapter" in captured.out, "the report comes before the error"
    begun = [line.split(":")[0] for line in captured.err.splitlines()]
    assert begun == (["Found", "Expected", "To do"] if code else [])

    assert main(["demo", "--json"]) == code
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[0]["adapter_accuracy"] == learned
    assert [record.get("event") for record in records[1:]] == (["error"] if code else [])
