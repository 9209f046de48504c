"""What is kept of a workflow, what fits into a header, and what is told of a stranger's."""

import json

import pytest

from trainer_core.adapter_files.metadata import LARGEST_KEPT, workflow_summary, workflow_texts

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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps(DRAWN), {"nodes": 1}),
        (json.dumps(QUEUED), {"nodes": 2}),
        ("{}", {"nodes": 0}),
        ('{"nodes": 7}', {"nodes": 0}),
        ("[]", {"problem": "not a JSON object"}),
        ("NaN", {"problem": "not a JSON object"}),
        ("{", {"problem": "not JSON"}),
        ("", {"problem": "not JSON"}),
        ("[" * 100_000, {"problem": "not JSON"}),
        ("x" * (LARGEST_KEPT + 1), {"problem": "too large to be looked at"}),
    ],
    ids=range(10),
)
def test_of_a_strangers_workflow_only_the_size_is_told(text, told):
    assert workflow_summary(text) == {"bytes": len(text), **told}
