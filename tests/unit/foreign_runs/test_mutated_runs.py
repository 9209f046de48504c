"""Whatever a file says, it becomes a run file that can be read again, or a refusal in words."""

import copy
import datetime
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fixtures import foreign_files as files

from trainer_core.config.yaml_dialect import parse_yaml
from trainer_core.errors import TrainerError
from trainer_core.families.run_files import load_config
from trainer_core.foreign_runs import Document, open_document, read_foreign
from trainer_core.foreign_runs.documents import parse_document

DOCUMENTS = [
    parse_document(name, text)
    for name, text in {
        "ai.yaml": files.AI_TOOLKIT,
        "flux.yaml": files.AI_TOOLKIT_FLUX,
        "lokr.yaml": files.AI_TOOLKIT_LOKR,
        "slider.yaml": files.AI_TOOLKIT_SLIDER_OLD,
        "command.sh": files.MUSUBI_COMMAND,
        "arguments.toml": files.MUSUBI_TOML,
        "datasets.toml": files.MUSUBI_DATASETS,
        "flux.sh": files.SD_SCRIPTS_FLUX,
        "sdxl.toml": files.SD_SCRIPTS_SDXL,
        "subsets.toml": files.SD_SCRIPTS_DATASETS,
        "one.json": files.ONE_TRAINER,
        "lokr.json": files.ONE_TRAINER_LOKR,
        "qwen.yaml": files.QWEN_FINETUNE,
        "old.yaml": files.QWEN_FINETUNE_OLD,
        "fly.yaml": files.FLYMYAI,
    }.items()
]
VALUES = [
    *(None, True, False, 0, -1, 0.5, 10**19, 10**400, 1e308, float("nan"), float("inf")),
    *("", "x", " ", "1e999", "9" * 400, "-1", "1,2", "512x", "512x0", "1*a", "${a.b}", "${model}"),
    *("漢字 \U0001f600\u202e\x07", "x" * 5000, "[1", "(((", "LORA", "../..", "C:\\x"),
    *([], [[]], [None], [1, "a", None], [{}], {}, {"a": {"b": 1}}, {1: 2, None: 3}),
    *(datetime.date(2024, 1, 1), b"\xff\x00", {1, 2}, [("a", 1)], [[1, 2], [3]]),
]
NAMES = ["漢", "a.b", "x" * 3000, "\t", "", 1, None, True, "[0]", " (", "datasets", "list", "job"]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every item of a mapping or a list below a value: what holds it, and its name there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in list(inside):
        yield value, name
        if isinstance(each, dict | list):
            yield from places(each)


def mutate(document: Document, chance: random.Random) -> Document:
    """A document with one value, or a few, lost, replaced, wrapped or added."""
    values = copy.deepcopy(dict(document.values))
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        found = list(places(values))
        if not found:
            break
        holder, name = chance.choice(found)
        kind = chance.randrange(10)
        if kind < 5:
            holder[name] = copy.deepcopy(chance.choice(VALUES))
        elif kind < 7:
            del holder[name]
        elif kind == 7 and isinstance(holder, dict):
            holder[chance.choice(NAMES)] = copy.deepcopy(chance.choice(VALUES))
        else:
            holder[name] = chance.choice([[holder[name]], {"a": holder[name]}])
    if document.format == "command":
        words = values.get("command")
        words = words if isinstance(words, list) else [words]
        values = {"command": [str(each) for each in words]}
    return replace(document, values=values)


def refusal(document: Document, family: str) -> str:
    """Read a document; whatever it says, nothing else is raised. Empty where it is read."""
    try:
        run = read_foreign([document], family=family, in_graph=not family)
        text = run.run_file()
        outcomes = {(note.key, note.outcome) for note in run.notes if note.outcome != "default"}
        assert len(outcomes) == len({key for key, _ in outcomes})
        config = run.config()
    except TrainerError as error:
        return str(error)
    assert load_config(parse_yaml(text, "run.yaml")) == config
    return ""


@pytest.mark.parametrize(
    "count", [40, pytest.param(1500, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
def test_a_mutated_file_is_read_or_refused(count):
    chance = random.Random(count)
    found = [
        refusal(mutate(chance.choice(DOCUMENTS), chance), chance.choice(["", "flux", "z_image"]))
        for _ in range(count)
    ]
    assert count / 8 < found.count("") < count * 7 / 8
    # A value of a stranger is shortened wherever a message names it.
    assert max(map(len, found)) < 3000
    assert max(each.count("\n") for each in found) < 20


@pytest.mark.parametrize("text", [files.AI_TOOLKIT, files.MUSUBI_COMMAND, files.ONE_TRAINER])
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(text, tmp_path):
    name = {files.AI_TOOLKIT: "a.yaml", files.MUSUBI_COMMAND: "a.sh"}.get(text, "a.json")
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    found = read_foreign([open_document(tmp_path / name)])
    assert found.values == read_foreign([parse_document(name, text)]).values


def test_references_of_yaml_are_followed_and_a_key_said_twice_counts_last():
    text = files.FLYMYAI.replace("rank: 20", "rank: &r 20\nseed_of: *r\nrank: 24")
    run = read_foreign([parse_document("x.yaml", text)])
    assert run.values["adapter.rank"] == 24
    assert [note.key for note in run.outcome("unknown")] == ["seed_of", "stars"]
