"""Text of strangers does nothing to a terminal, and floods nobody."""

import pytest

from trainer_core.printable import printable


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
