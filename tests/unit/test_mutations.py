"""The list of bugs that the quick tests have to notice fits the files of today."""

from collections import Counter
from pathlib import Path

from mutations.run import ROOT, mutations

LISTED = mutations()


def test_each_bug_is_one_change_of_its_file():
    assert len({each["id"] for each in LISTED}) == len(LISTED) >= 60
    for each in LISTED:
        text = (ROOT / each["file"]).read_text(encoding="utf-8")
        assert text.count(each["before"]) == 1, each["id"]
        assert each["before"] != each["after"], each["id"]


def test_bugs_are_spread_over_all_packages():
    files = Counter(each["file"] for each in LISTED)
    assert max(files.values()) <= 3
    packages = {path.parent.name for path in ROOT.glob("trainer_core/*/__init__.py")}
    assert packages <= {Path(name).parts[1] for name in files}
    assert {"host", "services", "definitions"} <= {Path(name).parts[1] for name in files}


def test_their_tests_are_there():
    for each in LISTED:
        assert each["caught_by"], each["id"]
        for test in each["caught_by"]:
            assert (ROOT / test.partition("::")[0]).is_file(), test
