"""Which of the slow checks a submission runs, so that three in a row run every exhaustive case.

Usage:
    tier.py files    the test files whose exhaustive cases run: the third whose turn it is, by the
                     number in .ci/turn, and every test file that changed since the turn before
    tier.py matrix   the targets of `make` that are run for the hosts of the matrix
    tier.py proven   keep the fingerprint of what the whole matrix has just proven
    tier.py report TARGETS    what ran, the targets of the matrix among it, and what comes next
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
TURN = ROOT / ".ci" / "turn"
PROVEN = ROOT / ".ci" / "matrix_proven"
PARTS = 3
HOSTS = ("old", "new")
MATRIX_FILES = ("install.py", "requirements.txt", "trainer_core/requirements.py")
MATRIX_FOLDERS = ("constraints", "tests/matrix")


def turn() -> int:
    """How many submissions there were; each adds one to the file."""
    return int(TURN.read_text(encoding="utf-8"))


def exhaustive_files() -> list[str]:
    """The test files of this turn, relative to the project's folder."""
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]
    changed = _changed_since_the_last_turn(files)
    return sorted(file for file in files if file in changed or _part(file) == turn() % PARTS)


def matrix_is_proven() -> bool:
    """Whether nothing changed of what the whole matrix proved the last time it passed."""
    return PROVEN.is_file() and PROVEN.read_text(encoding="utf-8").strip() == _matrix_fingerprint()


def matrix_targets() -> str:
    """Both hosts whole, or one of them by turns: its installation and its imports."""
    return f"guest-{HOSTS[turn() % len(HOSTS)]}" if matrix_is_proven() else "matrix"


def report(targets: str) -> str:
    """Say in two lines what this submission ran and what is left to the next."""
    part = turn() % PARTS
    lines = [
        f"Exhaustive cases: part {part + 1} of {PARTS} and the changed test files; "
        f"the next submission runs part {(part + 1) % PARTS + 1}.",
        f"Matrix: {targets}.",
    ]
    return "\n".join(lines)


def _part(file: str) -> int:
    return int(hashlib.sha256(file.encode()).hexdigest(), 16) % PARTS


def _changed_since_the_last_turn(files: list[str]) -> set[str]:
    """Files that changed since the commit of the turn before; all where there is no such commit."""
    turns = _git("log", "-2", "--format=%H", "--", TURN.relative_to(ROOT).as_posix()).split()
    if len(turns) < 2:
        return set(files)
    return set(_git("diff", "--name-only", turns[1], "--", "tests").splitlines())


def _matrix_fingerprint() -> str:
    """A hash of the pack's requirements and of the libraries that its modules import."""
    digest = hashlib.sha256()
    folders = (path for folder in MATRIX_FOLDERS for path in ROOT.joinpath(folder).iterdir())
    paths = sorted({*(ROOT / file for file in MATRIX_FILES), *filter(Path.is_file, folders)})
    for path in paths:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    # The rest of it is of tools.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    digest.update(json.dumps([project, sorted(_imported_libraries())]).encode())
    return digest.hexdigest()


def _imported_libraries() -> set[str]:
    names = set()
    for folder in ("nodes", "trainer_core"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names.add((node.module or "").split(".")[0])
    return names


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False
    )
    return done.stdout if done.returncode == 0 else ""


def main() -> int:
    """Print what was asked for."""
    match sys.argv[1:]:
        case ["files"]:
            print("\n".join(exhaustive_files()))
        case ["matrix"]:
            print(matrix_targets())
        case ["proven"]:
            PROVEN.write_text(_matrix_fingerprint() + "\n", encoding="utf-8")
        case ["report", *targets]:
            print(report(" ".join(targets)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
