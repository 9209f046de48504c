"""Text of strangers does nothing to a terminal, and floods nobody."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.printable import listed, printable, shortened, single_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Zürich 猫 é", "Zürich 猫 é"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("\x07\r\x08", "\\x07\\x0d\\x08"),
        ("\u202egpj", "\\u202egpj"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_nothing_is_left_of_control(text):
    shown = printable(text)
    left = {unicodedata.category(c) for c in shown if c not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown
    assert len(single_line(text).splitlines()) <= 1


def test_long_texts_and_lists_are_counted():
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("x" * 1_000_010, 10) == "x" * 10 + "... (and 1 000 000 more characters)"
    assert listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(60_000)), 2) == "0, 1, and 59 998 more"
