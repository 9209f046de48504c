"""The field's words: what was once called otherwise does not come back.

The table is held in what a user reads (messages, help texts, README, docs, the panel) and in what
an engineer searches for (docstrings, comments, names of modules, classes and
functions).
"""

import io
import re
import tokenize
from functools import cache

import pytest
from architecture.source import ROOT, sources
from fixtures.tables import table

WORDS = table(__file__, "glossary words")
"""What is searched for in running text, without regard to case, and what to say instead."""

NAMES = table(__file__, "glossary names")
"""What is searched for in names of Python, and what to say instead."""

MODULES = table(__file__, "glossary modules")
"""Modules that are called otherwise now."""

ALLOWED = table(__file__, "glossary allowed")
"""Files in which an old word is data, and why."""

KEPT = table(__file__, "glossary kept")
"""Old words in what users and their programs have: only these, alone in quotes or as a field."""

TEXTS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "js/docs/*.md", "js/**/*.js")


_WORD = re.compile(r"\w+")


@cache
def tokens(path: str) -> tuple[tokenize.TokenInfo, ...]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return tuple(tokenize.generate_tokens(io.StringIO(text).readline))


def python_texts(path: str):
    """Every comment and string of a file with some old word, with its line."""
    if not ANY.search((ROOT / path).read_text(encoding="utf-8")):
        return
    for token in tokens(path):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            if token.string.strip("rbfuRBFU").strip("\"'") not in KEPT:
                yield token.start[0], token.string
        elif token.type == getattr(tokenize, "FSTRING_MIDDLE", None):
            yield token.start[0], token.string


ANY = re.compile("|".join(WORDS), re.IGNORECASE)


def findings(text: str) -> list[tuple[str, str]]:
    """Old words in a text, each with the new one."""
    if not ANY.search(text):
        return []
    # A file's own name and a field that is kept stand in backquotes.
    plain = re.sub(r"`+[^`]*`+|\bpictures:", "", text)
    return [
        (match.group(), new)
        for old, new in WORDS.items()
        for match in re.finditer(old, plain, re.IGNORECASE)
    ]


PRODUCT = (*sources("trainer_core"), *sources("nodes"))
PYTHON = [each.path for each in PRODUCT]
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for pattern in TEXTS for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("word", KEPT)
def test_what_users_have_is_still_called_so(word):
    assert any(re.search(rf'"{word}"|^    {word}: ', each.text, re.MULTILINE) for each in PRODUCT)


def test_there_is_something_to_read():
    assert len(PYTHON) > 100
    assert {"README.md", "docs/architecture.md"} <= set(PAGES)
    assert set(ALLOWED) <= {*PYTHON, *PAGES}


@pytest.mark.parametrize("old", ["Draws the preview", "a graphics card", "Pictures", "made anew"])
def test_an_old_word_is_found(old):
    assert findings(f"It is so: {old} here.")


def test_python_says_the_fields_words():
    wrong = [
        f"{file}:{line}: {old!r}: say {new}"
        for file in PYTHON
        if file not in ALLOWED
        for line, text in python_texts(file)
        for old, new in findings(text)
    ]
    assert not wrong, "\n".join(wrong)


def _names(file: str) -> set[str]:
    """Names of a file's code; in most files none of the words can be one."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if not any(re.search(old, word) for word in set(_WORD.findall(text)) for old in NAMES):
        return set()
    return {token.string for token in tokens(file) if token.type == tokenize.NAME}


def test_names_are_the_fields_words():
    wrong = []
    for file in PYTHON:
        names = _names(file) - KEPT.keys()
        modules = file.removesuffix(".py").split("/")[1:]
        wrong += [f"{file}: say {MODULES[name]}" for name in modules if name in MODULES]
        names |= set(modules)
        wrong += [
            f"{file}: {name}: say {new}"
            for name in sorted(names)
            for old, new in NAMES.items()
            if re.search(old, name)
        ]
    assert not wrong, "\n".join(wrong)


def test_pages_say_the_fields_words():
    wrong = [
        f"{page}:{number}: {old!r}: say {new}"
        for page in PAGES
        if page not in ALLOWED
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1)
        for old, new in findings(line)
    ]
    assert not wrong, "\n".join(wrong)
