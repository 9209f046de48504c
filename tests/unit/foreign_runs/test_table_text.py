"""Tables of other trainers' keys, as they are written in ``keys/``."""

import pytest

from trainer_core.foreign_runs.rules import ABSENT, EVERY, Lacks, Maps, Together, text, whole
from trainer_core.foreign_runs.table_text import FOLDER, read_tables

TEXT = """# Source: nowhere.

[]
a b -> x.y whole = 3 ~ How it
    differs. ! 1 two
c -> x.z own
quantize -> m.n on:fp8
d & x.y, x.z
e f -- A reason. | any
g -- Another. | every
h -- - | None 0..2 'a b' off
i -- It is none.

[ if j]
j -> x.j text = none
"""


def test_each_form_of_a_line_is_the_rule_that_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer_core.foreign_runs.table_text.FOLDER", tmp_path)
    (tmp_path / "p.txt").write_text(TEXT, encoding="utf-8")
    tables = read_tables("p", own=text)
    table = tables[""]
    assert table["a"] == table["b"] == Maps("x.y", whole, 3, "How it differs.", (1, "two"))
    assert table["c"] == Maps("x.z", text)
    quantize = table["quantize"]
    assert isinstance(quantize, Maps)
    assert (quantize.read("true"), quantize.read(False)) == ("fp8", ABSENT)
    assert table["d"] == Together("x.y, x.z")
    assert table["e"] == table["f"] == Lacks("A reason.", (None, True, False))
    assert table["g"] == Lacks("Another.", EVERY)
    assert table["h"] == Lacks("", (None, 0, 1, 2, "a b", "off"))
    assert table["i"] == Lacks("It is none.")
    # What holds under a condition is known to the table of its place, too.
    assert (tables[" if j"]["j"], table["j"]) == (Maps("x.j", text, "none"), Together("x.j"))


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_every_file_names_its_source_and_is_as_wide_as_code(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# Source: ")
    assert max(map(len, lines)) <= 100
