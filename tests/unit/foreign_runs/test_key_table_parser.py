"""Tables of other trainers' keys, as they are written in ``keys/``."""

import pytest

from trainer_core.foreign_runs.conversion import (
    EVERY,
    Case,
    Cases,
    Condition,
    Conversion,
    Maps,
    NoCounterpart,
    Source,
    Together,
)
from trainer_core.foreign_runs.key_table_parser import FOLDER, read_tables
from trainer_core.foreign_runs.value_readers import ABSENT, text, whole

TEXT = """# Source: nowhere.

[]
a b -> adapter.rank whole = 3 ~ How it
    differs. ! 1 two
quantize -> memory.base_format on:fp8
d & x.y, x.z
e f -- A reason. | any
g -- Another. | every
h -- - | None 0..2 'a b' off
i -- It is none.
k =  one
  * one two if no quantize: adapter.kind=lora; adapter.init ~ Near.
  * *: adapter.kind=loha -- None.

[s]
l > m if /k is one t* and no n -> training.steps epochs
* -- Any other.

[each part if @fact]
o -> output.name text
"""


def test_each_form_of_a_line_is_the_row_that_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer_core.foreign_runs.key_table_parser.FOLDER", tmp_path)
    (tmp_path / "p.txt").write_text(TEXT.replace("k =  one", "k = one"), encoding="utf-8")
    tables = read_tables("p")
    row = tables[""].row
    for key in "ab":
        near, exact = "How it differs.", (1, "two")
        assert row(key) == Maps([key], [], 3, "adapter.rank", whole, near, exact)
    quantize = row("quantize")
    assert isinstance(quantize, Maps)
    assert quantize.read is not None
    assert (quantize.read("true"), quantize.read(False)) == ("fp8", ABSENT)
    assert row("d") == Together(["d"], [], None, "x.y, x.z")
    assert row("f") == NoCounterpart(["f"], [], None, "A reason.", (None, True, False))
    assert row("g") == NoCounterpart(["g"], [], None, "Another.", EVERY)
    assert row("h") == NoCounterpart(["h"], [], None, "", (None, 0, 1, 2, "a b", "off"))
    first = Case(
        ["one", "two"],
        [Condition("quantize", [], False)],
        [("adapter.kind", "lora"), ("adapter.init", ABSENT)],
        "Near.",
        "",
    )
    other = Case(["*"], [], [("adapter.kind", "loha")], "", "None.")
    assert row("k") == Cases(["k"], [], "one", [first, other])
    conditions = [Condition("k", ["one", "t*"]), Condition("s.n", [], False)]
    assert row("s.m") == Maps(["s.l", "s.m"], conditions, None, "training.steps", None)
    assert row("s.z") == row("s.*")
    fact = [Condition("@fact", [])]
    assert tables["part"].row("o") == Maps(["o"], fact, None, "output.name", text)


def test_a_row_holds_where_its_conditions_do_and_its_keys_are_else_off(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer_core.foreign_runs.key_table_parser.FOLDER", tmp_path)
    (tmp_path / "p.txt").write_text(TEXT.replace("k =  one", "k = one"), encoding="utf-8")
    to = Conversion()
    values = {"k": "TWO", "quantize": "no", "s": {"l": 4, "m": 5, "q": 1, "n": True}}
    Source("f", values, read_tables("p")[""]).apply(to)
    to.finish()
    assert to.values == {"adapter.rank": 3, "adapter.kind": "lora"}
    assert to.epochs == {}
    found = {note.key: (note.outcome, note.why) for note in to.notes}
    assert found["a"] == ("default", "How it differs.")
    assert found["k"] == ("near", "Near.")
    assert found["s.l"] == found["s.m"] == ("off", "It means nothing with s.n true.")
    assert found["s.q"] == ("lacking", "Any other.")


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_every_file_names_its_source_and_is_nearly_as_wide_as_code(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# Source: ")
    assert max(map(len, lines)) <= 100
