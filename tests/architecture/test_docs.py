"""README and docs: short, each page in the index once, each link and reference leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest
from architecture.source import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
LIMITS = {"README.md": 1600, "docs": 40_000, "a decision": 450}
"""Words without rows of tables that a script writes; a decision's without any row."""

_GENERATED = re.compile(
    r"<!-- figures: .*?<!-- end of figures -->|<!-- The tables below are written.*", re.DOTALL
)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$|^(?: {4}|\t).*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_TITLE = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CITED = re.compile(r"\bdocs/(?:[\w-]+/)*[\w-]+\.md\b|\bdocs/decisions/\d{4}\b")
_NUMBER = re.compile(r"\bdecisions? (\d+)\b")
FOREIGN = ("anima_train_network", "zimage", "krea2", "supported_models", "gguf")
"""Pages of other programs that comments name as their source."""


def words(text: str) -> int:
    return len(_GENERATED.sub("", text).split())


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Of the titles, as GitHub makes them."""
    titles = _TITLE.findall(_CODE.sub(lambda each: each[0].strip("`"), text))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def broken(path: Path, text: str) -> list[str]:
    """Links of a page that lead to no file, or to no title of it."""
    found = []
    for link in _LINK.findall(_CODE.sub("", text)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(read(target))):
            found.append(f"{path.relative_to(ROOT)}: {link}")
    return found


def test_readme_and_docs_stay_short():
    assert words(read(ROOT / "README.md")) <= LIMITS["README.md"]
    assert sum(words(read(page)) for page in DOCS.rglob("*.md")) <= LIMITS["docs"]
    assert len(DECISIONS) <= 25
    long = {page.name: len(_ROW.sub("", read(page)).split()) for page in DECISIONS}
    assert {name: count for name, count in long.items() if count > LIMITS["a decision"]} == {}


def test_the_first_line_says_what_is_trained():
    assert "any model that ComfyUI loads" in read(ROOT / "README.md").splitlines()[2]


def test_the_index_has_every_page_once():
    linked = [link for link in _LINK.findall(read(DOCS / "README.md")) if not link.startswith("..")]
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"README.md"}
    assert sorted(linked) == sorted(pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    assert broken(page, read(page)) == []


def test_a_broken_link_is_noticed():
    page = DOCS / "memory.md"
    for link in ("gone.md", "faults.md#gone", "#gone", "../trainer_core/gone.py"):
        assert broken(page, f"see [it]({link})"), link
    assert broken(page, "[it](#files) [it](faults.md#a-signal) `[x](y)` [it](https://x.org)") == []


def test_pages_and_decisions_that_the_code_cites_are_there():
    numbers = {int(page.name[:4]) for page in DECISIONS}
    starts = {f"docs/decisions/{page.name[:4]}" for page in DECISIONS}
    listing = ["git", "ls-files", "*.py", "*.js", "*.yaml", "*.md", "Makefile", ".ci"]
    listed = subprocess.check_output(listing, cwd=ROOT, text=True).splitlines()
    lost = []
    for name in listed:
        if name == "tests/architecture/test_docs.py" or not (ROOT / name).is_file():
            continue
        text = read(ROOT / name)
        for cited in _CITED.findall(text):
            known = (ROOT / cited).is_file() or cited in starts
            if not known and Path(cited).stem not in FOREIGN:
                lost.append(f"{name}: {cited}")
        lost += [f"{name}: decision {n}" for n in _NUMBER.findall(text) if int(n) not in numbers]
    assert lost == []
