"""What a run of the tests shows while it lasts, and the seconds that it keeps for the next ones."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
"""Seconds of each test file, of its quick and its exhaustive cases."""

_INTERVAL = 10.0
_UNKNOWN = 1.0


def expected_seconds(config: pytest.Config) -> dict[str, float]:
    """Seconds by test file of the cases that ``-m`` chooses; without files that are new."""
    left_out = {"not exhaustive": "exhaustive", "exhaustive": "quick"}.get(config.option.markexpr)
    return {
        file: sum(seconds for kind, seconds in kinds.items() if kind != left_out)
        for file, kinds in _read().items()
        if kinds.keys() - {left_out}
    }


def _read() -> dict[str, dict[str, float]]:
    return json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}


class Progress:
    """Prints a line every ten seconds, and a failure as soon as it is known.

    Args:
        config: Of the process that hands tests out.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started, self._printed = time.monotonic(), 0.0
        self._counts: Counter[str] = Counter()
        self._spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._left: Counter[str] = Counter()
        self._expected: dict[str, float] = {}
        self._total = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Know what will run; each process has collected the same."""
        if not self._total:
            self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Know what will run, where one process runs it."""
        if session.items:
            self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letter for what went well or was skipped."""
        if report.passed or report.skipped:
            return report.outcome if report.when == "call" or report.skipped else "", "", ""
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, print a failure with its reason, and now and then how far it is."""
        file = report.nodeid.split("::")[0]
        markers = dict(report.user_properties).get("markers", ())
        if not report.skipped:
            kind = "exhaustive" if "exhaustive" in markers else "quick"
            self._spent[file, kind] += report.duration
        if report.failed:
            self._counts["failed"] += 1
            self._write(f"\nFAILED {report.nodeid}, {report.when}\n{report.longreprtext}\n")
        elif report.when == "call" or report.skipped:
            self._counts[report.outcome] += 1
        if report.when == "teardown":
            self._left[file] -= 1
        if time.monotonic() - self._printed > _INTERVAL:
            self._printed = time.monotonic()
            self._write(self._line(file))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the seconds where that was asked for; cases that did not run keep theirs."""
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not (ended and self._config.getoption("--write-seconds")):
            return
        table = {file: kinds for file, kinds in _read().items() if Path(file).is_file()}
        for (file, kind), seconds in self._spent.items():
            table.setdefault(file, {})[kind] = round(seconds, 1)
        lines = [f'"{file}": {json.dumps(kinds)}' for file, kinds in sorted(table.items())]
        SECONDS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    def _expect(self, ids: Iterable[str]) -> None:
        self._left.update(node.split("::")[0] for node in ids)
        self._total = self._left.total()
        known = expected_seconds(self._config)
        self._expected = {
            file: known.get(file, _UNKNOWN) / count for file, count in self._left.items()
        }
        self._write(f"{self._total} tests in {len(self._left)} files.\n")

    def _line(self, file: str) -> str:
        seconds = int(time.monotonic() - self._started)
        rest = sum(count * self._expected.get(name, 0) for name, count in self._left.items())
        failed = f", {self._counts['failed']} failed" if self._counts["failed"] else ""
        done = self._counts.total()
        return (
            f"{seconds // 60}:{seconds % 60:02} {done} of {self._total} done{failed}, "
            f"{int(rest)} s of work left: {file}\n"
        )

    def _write(self, text: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write(text, flush=True)
