"""What every test shares: the markers' conditions, and a count of what ran for each marker."""

import ctypes
import functools
import gc
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from comfyui.environment import comfyui_folder
from fixtures.families import lacking
from progress import Progress, expected_seconds
from quick_disk import temporary_folder

SHARING = ("tests/browser/", "tests/architecture/")
"""Folders whose files share a process: a browser and its server, and the parsed code."""

COMFY = "tests/comfyui/"
"""Its files share two: ComfyUI's server, and the host of the scripts that need none."""

MARKERS = ("comfy", "browser", "gpu", "slow", "exhaustive", "matrix")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_counts: dict[str, Counter[str]] = {marker: Counter() for marker in MARKERS}
_reasons: dict[str, Counter[str]] = {marker: Counter() for marker in MARKERS}
_failed: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make test`."""
    parser.addoption("--progress", action="store_true", help="lines in the place of letters")
    parser.addoption("--write-seconds", action="store_true", help="keep what each file took")


def pytest_configure(config: pytest.Config) -> None:
    """Show how far a run is, from the process that hands tests out, and say where they write."""
    if hasattr(config, "workerinput"):
        _end_with_parent()
        return
    if config.option.markexpr == "not exhaustive":  # the others hold more
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", temporary_folder())
    if config.getoption("--progress"):
        config.pluginmanager.register(Progress(config))


def _end_with_parent() -> None:
    """End this worker when the process that hands tests out is gone, and its servers with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage when all tests are known: nearly all that is made until then stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files; skip, with the reason, what this machine cannot run."""
    known = expected_seconds(config)
    items.sort(key=lambda item: -_length(item.nodeid.split("::")[0], known))
    skips = {}
    if comfyui_folder() is None:
        skips["comfy"] = "no ComfyUI at $COMFYUI_PATH or ~/ComfyUI"
    if any(item.get_closest_marker("gpu") for item in items) and not _has_cuda():
        skips["gpu"] = "torch sees no CUDA device"
    if not os.environ.get("MATRIX"):
        skips["matrix"] = "it builds environments; make matrix runs it"
    without = lacking()
    for item in items:
        if without and _family_of(item, without):
            item.add_marker(pytest.mark.skip(reason="the installed Diffusers has no such family"))
        own = [marker for marker in MARKERS if item.get_closest_marker(marker)]
        # A report also knows folders by name, such as tests/gpu: they are not markers.
        item.user_properties.append(("markers", own))
        for marker in own:
            if marker in skips:
                item.add_marker(pytest.mark.skip(reason=skips[marker]))


def _family_of(item: pytest.Item, families: Collection[str]) -> bool:
    """Whether a test is of one of these families: by its file's name, or by a parameter."""
    given = getattr(item, "callspec", None)
    values = [] if given is None else list(given.params.values())
    names = {item.path.stem.removeprefix("test_"), *(v for v in values if isinstance(v, str))}
    return not names.isdisjoint(families)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and all of a folder that shares one to the same."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    few = len(config.getvalue("tx")) <= 2  # with more, these two would take longest

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            shared = _shared(scope)
            return scope if shared is None or (shared.startswith(COMFY) and not few) else shared

    return Scheduling(config, log)


def _length(file: str, known: Mapping[str, float]) -> float:
    """Seconds of what one process runs with this file; of a new one none are known."""
    if (shared := _shared(file)) is not None:
        return sum(seconds for other, seconds in known.items() if _shared(other) == shared)
    return known.get(file, 0.0)


@functools.cache
def _shared(file: str) -> str | None:
    """What a file shares its process with: a folder, or a server or a host of ComfyUI."""
    if file.startswith(COMFY):
        path = Path(__file__).parents[1] / file
        hosted = path.is_file() and "comfy_host" in path.read_text(encoding="utf-8")
        return f"{COMFY}{'host' if hosted else 'server'}"
    return next((folder for folder in SHARING if file.startswith(folder)), None)


@pytest.fixture(scope="module", autouse=True)
def _settled_objects() -> None:
    """Leave what libraries made at import out of the garbage collector's rounds.

    A run collects when it ends. With all libraries in memory a round took 0.4 s, which was half of
    the time of the tests that train.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Draw the same weights whatever ran before, and in whichever process."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test for each of its markers, and remember one that fails."""
    if report.failed and report.nodeid not in _failed:
        _failed.append(report.nodeid)
    finished = report.when == "call" or (report.when == "setup" and not report.passed)
    if not finished:
        return
    for marker in dict(report.user_properties).get("markers", ()):
        _counts[marker]["skipped" if report.skipped else "ran"] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            _reasons[marker][report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what ran and what was skipped for each marker, and write it where CI asks."""
    terminalreporter.write_sep("-", "markers")
    for marker in MARKERS:
        ran, skipped = _counts[marker]["ran"], _counts[marker]["skipped"]
        if not ran + skipped:
            continue
        why = "; ".join(_reasons[marker])
        terminalreporter.write_line(
            f"{marker}: ran {ran}, skipped {skipped}" + (f" ({why})" if why else "")
        )
    target = os.environ.get("MARKER_REPORT")
    if target:
        markers = {marker: dict(_counts[marker]) for marker in MARKERS}
        Path(target).write_text(
            json.dumps({"markers": markers, "failed": _failed}), encoding="utf-8"
        )


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
