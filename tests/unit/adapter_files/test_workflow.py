"""What is kept of a workflow, what fits into a header, and what is told of a stranger's."""

import json

import pytest

from trainer_core.adapter_files.metadata import (
    LARGEST_IN_HEADER,
    LARGEST_KEPT,
    header_problems,
    header_workflow,
    workflow_summary,
    workflow_texts,
)
from trainer_core.commands.inspect import header_values

DRAWN = {"nodes": [{"id": 1, "type": "Note", "widgets_values": ["\u00fc \U0001f600 \ud83d"]}]}
QUEUED = {"1": {"class_type": "Note", "inputs": {}}, "2": {"class_type": "Note", "inputs": {}}}


def test_texts_are_strict_ascii_that_gives_back_what_was_given():
    lines = []
    texts = workflow_texts({"workflow": DRAWN, "prompt": QUEUED}, lines.append)
    assert list(texts) == ["workflow", "prompt"]
    assert json.loads(texts["workflow"]) == DRAWN
    assert json.loads(texts["prompt"]) == QUEUED
    # Half a pair of surrogates, which no file in UTF-8 can hold, is escaped as well.
    assert texts["workflow"].isascii()
    assert lines == []
    assert workflow_texts({}, lines.append) == {}
    assert workflow_texts({"workflow": None, "other": DRAWN}, lines.append) == {}
    assert lines == []


def nested(depth=100_000):
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


BAD = {
    "not a number": {"nodes": [float("nan")]},
    "endless": {"nodes": [float("inf")]},
    "an object": {"nodes": [object()]},
    "bytes": {"nodes": b"x"},
    "deep": {"nodes": nested()},
    "a list": [1],
    "a text": "{}",
    "huge": {"nodes": ["x" * LARGEST_KEPT]},
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_workflow_is_left_out_with_a_line(case):
    lines = []
    assert workflow_texts({"workflow": BAD[case], "prompt": QUEUED}, lines.append).keys() == {
        "prompt"
    }
    (line,) = lines
    assert line.startswith("The workflow of this run is not kept: ")
    assert len(line) < 200


def test_what_does_not_fit_is_left_out_of_the_header_with_a_line():
    small, large = json.dumps(QUEUED), json.dumps({"nodes": ["x" * LARGEST_IN_HEADER]})
    assert header_workflow({"workflow": large, "prompt": small}) == {"prompt": small}
    (line,) = header_problems({"workflow": large, "prompt": small})
    assert line.startswith("The workflow of this run (1.0 MiB) is too large")
    # The page prefers the workflow, so it takes the room first.
    half = json.dumps({"nodes": ["x" * (LARGEST_IN_HEADER // 2)]})
    assert header_workflow({"prompt": half, "workflow": half}) == {"workflow": half}
    assert header_problems({"workflow": small}) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps(DRAWN), {"nodes": 1}),
        (json.dumps(QUEUED), {"nodes": 2}),
        ("{}", {"nodes": 0}),
        ('{"nodes": 7}', {"nodes": 0}),
        ("[]", {"problem": "no JSON object"}),
        ("NaN", {"problem": "no JSON object"}),
        ("{", {"problem": "no JSON"}),
        ("", {"problem": "no JSON"}),
        ("[" * 100_000, {"problem": "no JSON"}),
        ("x" * (LARGEST_KEPT + 1), {"problem": "too large to be looked at"}),
    ],
    ids=range(10),
)
def test_of_a_strangers_workflow_only_the_size_is_told(text, told):
    assert workflow_summary(text) == {"bytes": len(text), **told}


@pytest.mark.parametrize("readably", [True, False])
def test_inspect_shows_the_size_of_a_workflow_and_not_what_it_says(readably):
    header = {"workflow": json.dumps(DRAWN), "prompt": "{", "ss_steps": "3", "other": "[1]"}
    shown = header_values(header, readably=readably)
    assert list(shown) == ["other", "prompt", "ss_steps", "workflow"]
    assert shown["workflow"] == {"bytes": len(header["workflow"]), "nodes": 1}
    assert shown["prompt"] == {"bytes": 1, "problem": "no JSON"}
    assert shown["other"] == ([1] if readably else "[1]")
