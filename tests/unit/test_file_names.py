"""Names in any script are taken; what leads elsewhere, hides or is not a name somewhere is not."""

import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.config.read_run_file import load_config
from trainer_core.errors import ConfigError
from trainer_core.filesystem.file_names import LONGEST_NAME, leads_out, name_mistake

TAKEN = [
    *("my_adapter", "a", "v1.2 final", "A (2)", "100% wool", "été", "Müller's", "кошка", "猫の絵"),
    *(
        "고양이",
        "قطة",
        "חתול",
        "แมว",
        "बिल्ली",
        "γάτα",
        "ネコ・ver.2",
        "🐱",
        "👩\u200d🎨",
        "👍🏽 style",
    ),
    *("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "क्\u200dष", "x" * LONGEST_NAME),
    *("_hidden", "~home", "#1 & co", "conny", "com10"),
]
REFUSED = {
    "": "empty",
    " ": "empty",
    ".": "empty",
    "..": "empty",
    "a/b": "character",
    "a\\b": "character",
    "C:x": "character",
    'a"b': "character",
    "a|b": "character",
    "what?": "character",
    "a\0b": "invisible",
    "a\nb": "invisible",
    "a\x7fb": "invisible",
    "\u202egnp.exe": "invisible",
    "a\u2066b": "invisible",
    "a\u200bb": "invisible",
    "a\u00adb": "invisible",
    "\ufeffa": "invisible",
    "a\u200cb": "invisible",
    "猫\u200d": "invisible",
    "a\u2028b": "invisible",
    "a\ue000b": "invisible",
    "a.": "dot at the end",
    "a ": "dot at the end",
    " a": "space in front",
    ".a": "in front",
    "-a": "in front",
    "con": "device",
    "NUL.txt": "device",
    "Lpt1": "device",
    "com¹.x": "device",
    "aux .x": "device",
    "猫" * (LONGEST_NAME // 3 + 1): "bytes",
    "e\u0301": "loose accents",
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_in_any_script_is_taken(name):
    assert name_mistake(name) == ""
    assert load_config({"output": {"name": name}}).output.name == name


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_misleads_or_is_none_somewhere_is_refused(name):
    assert REFUSED[name] in name_mistake(name)


def test_a_run_has_the_same_rule_and_one_name_however_its_accents_were_typed():
    for name in ("a/b", "\u202egnp.exe", "con"):
        with pytest.raises(ConfigError, match=r"output\.name"):
            load_config({"output": {"name": name}})
    assert load_config({"output": {"name": "e\u0301te\u0301"}}).output.name == "\u00e9t\u00e9"


@given(st.text(max_size=40))
def test_whatever_is_taken_is_one_visible_name(name):
    if name_mistake(name):
        return
    assert not set(name) & set('/\\<>:"|?*')
    assert unicodedata.is_normalized("NFC", name)
    assert name == name.strip(" ")
    assert name.encode()


def test_a_path_below_a_folder_leads_out_of_it_as_its_system_reads_it():
    for out in ("C:a.csv", r"\a.csv", r"\\host\share\a.csv", r"..\a.csv", "/a.csv", "../a.csv"):
        assert leads_out(PureWindowsPath(out))
        assert leads_out(PurePosixPath(out)) == ("/" in out)
    assert not leads_out(PureWindowsPath("b/a.csv"))
