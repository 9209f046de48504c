"""See whether the quick tests notice the bugs of ``mutations.yaml``.

    python -m tests.mutations.run [ID ...]                        does each named test fail?
    python -m tests.mutations.run ID [...] --find [--also TESTS]  which tests fail, and how long?

The files that git does not ignore are copied into a temporary folder, so that the checkout is only
read. There one bug after another is written into its file, and its tests are run with this
interpreter.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutations.yaml")
QUICK = "not exhaustive and not gpu and not matrix"
PASSED, FAILED = 0, 1  # pytest's exit codes


def mutations() -> list[dict[str, Any]]:
    """Each with id, file, before, after, why and caught_by."""
    return yaml.safe_load(LIST.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code: 1 where a bug is missed, or its tests cannot tell."""
    parser = argparse.ArgumentParser(prog="tests.mutations.run")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--find", action="store_true", help="name all tests that notice")
    parser.add_argument("--also", nargs="+", default=[], metavar="TESTS", help="where else to look")
    given = parser.parse_args(arguments)
    known = {each["id"]: each for each in mutations()}
    if unknown := [name for name in given.ids if name not in known]:
        parser.error(f"there is no {', '.join(unknown)}")
    chosen = [known[name] for name in given.ids or known]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder) / "adapter_trainer"
        _copy_files(copy)
        if given.find:
            return _find(copy, chosen, given.also)
        return _check(copy, chosen)


def _check(copy: Path, chosen: Sequence[dict[str, Any]]) -> int:
    tests = dict.fromkeys(test for each in chosen for test in each["caught_by"])
    code, told = _pytest(copy, [*tests])
    if code != PASSED:
        _say(f"{told}\nThe tests do not pass without a bug (exit code {code}).")
        return 1
    caught = 0
    for number, each in enumerate(chosen, 1):
        with _mutated(copy, each, number):
            code = _pytest(copy, each["caught_by"], "-x")[0]
        caught += code == FAILED
        outcome = {FAILED: "caught", PASSED: "MISSED"}.get(code, f"BROKEN ({code})")
        _say(f"{outcome}: {each['id']} ({each['file']}): {each['why']}")
    _say(f"{caught} caught, {len(chosen) - caught} missed")
    return int(caught < len(chosen))


def _find(copy: Path, chosen: Sequence[dict[str, Any]], also: Sequence[str]) -> int:
    report = copy.parent / "report.xml"
    for number, each in enumerate(chosen, 1):
        _say(f"{each['id']} ({each['file']}): {each['why']}")
        with _mutated(copy, each, number):
            form = ("-o", "junit_family=xunit1", f"--junitxml={report}")
            _pytest(copy, [*_mirrors(copy, each["file"]), *also], *form)
        noticed = sorted(_failed(report))
        for seconds, test in noticed:
            _say(f"  {seconds:7.2f} s  {test}")
        _say(f"  {len(noticed)} noticed")
    return 0


def _mirrors(copy: Path, file: str) -> list[str]:
    """The unit tests that mirror a file's package."""
    first, package, *_ = Path(file).with_suffix("").parts
    folder = Path("tests/unit", "nodes" if first == "nodes" else package)
    if (copy / folder).is_dir():
        return [str(folder)]
    found = (path.relative_to(copy) for path in copy.glob("tests/unit/test_*.py"))
    # That of the list itself notices every change.
    return sorted(str(path) for path in found if path.name != "test_mutations.py")


def _failed(report: Path) -> Iterator[tuple[float, str]]:
    for case in ET.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield float(case.get("time", 0)), f"{case.get('file')}::{case.get('name')}"


def _copy_files(copy: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if (modules := ROOT / "node_modules").is_dir():
        (copy / "node_modules").symlink_to(modules.resolve())
    if (made := ROOT / "build" / "comfy").is_dir():
        # The environment over ComfyUI's, which takes minutes to make.
        shutil.copytree(made, copy / "build" / "comfy", symlinks=True)


@contextmanager
def _mutated(copy: Path, mutation: dict[str, Any], number: int) -> Iterator[None]:
    path = copy / mutation["file"]
    text, times = path.read_text(encoding="utf-8"), path.stat()
    if text.count(mutation["before"]) != 1:
        raise SystemExit(f"{mutation['id']}: its text is not once in {mutation['file']}")
    path.write_text(text.replace(mutation["before"], mutation["after"]), encoding="utf-8")
    # Bytecode is known by size and second; of two bugs in one file none may pass for the other.
    os.utime(path, (number, number))
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _pytest(copy: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Its exit code, and what it printed; those of the panel are run by vitest."""
    pages = [test for test in tests if test.endswith(".js")]
    if pages:
        vitest = [str(ROOT / "node_modules" / ".bin" / "vitest"), "run", *pages]
        shown = subprocess.run(vitest, cwd=copy, capture_output=True, text=True)
        rest = [test for test in tests if test not in pages]
        if shown.returncode or not rest:
            return shown.returncode, shown.stdout + shown.stderr
        tests = rest
    # Before what is installed, also for the processes that tests begin.
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK]
    done = subprocess.run(
        [*command, *options, *tests], cwd=copy, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
