"""Translations of the English texts; that none is missing is tested with a server's nodes."""

import re

import pytest

from scripts.build_locales import LANGUAGES, memory, tab_texts, translated

# Placeholders, quoted options, flags, and names such as those of files and settings.
_KEPT = re.compile(r"\{\w*\}|(?<!\w)'[^']+'(?!\w)|\[\w+\]|--\w+|\w+(?:[._/]\w+)+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def changed(english, translation):
    """What a translation has to have as it is in English, and has not."""
    lost = [part for part in _KEPT.findall(english) if part not in translation]
    numbers = [sorted(_NUMBER.findall(text)) for text in (english, translation)]
    return lost + (numbers if numbers[0] != numbers[1] else [])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_keeps_what_is_no_word(language):
    known = memory(language)
    found = {text: changed(text, known[text]) for text in known if changed(text, known[text])}
    assert found == {}
    # A name is a message of vue-i18n, which these characters belong to.
    assert [text for text in known.values() if set("@|") & set(text)] == []
    assert [
        text
        for text in known
        if set(re.findall(r"\{\w*\}", known[text])) != set(re.findall(r"\{\w*\}", text))
    ] == []
    assert [text for text in tab_texts() if text not in known] == []


def test_a_change_is_noticed():
    english = "Set 'auto' or {run} to 0.6 in run_file.yaml, --w 64."
    assert changed(english, english.replace("Set", "Setze")) == []
    for part in ("'auto'", "{run}", "0.6", "run_file.yaml", "--w", "64"):
        assert changed(english, english.replace(part, "")) != []


def test_what_has_no_translation_is_left_out():
    texts = {"display_name": "A", "inputs": {"b": {"tooltip": "B"}, "c": {"tooltip": "C"}}}
    assert translated(texts, {"C": "Z"}) == {"inputs": {"c": {"tooltip": "Z"}}}
