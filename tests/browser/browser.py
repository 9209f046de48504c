"""A headless Chromium with ComfyUI's own frontend, driven over a line protocol by driver.mjs."""

import base64
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PLAYWRIGHT = ROOT / "node_modules" / "playwright-core" / "package.json"
_ANSWER_SECONDS = 180


def missing() -> str:
    """Why no browser can be driven on this machine, or nothing."""
    if shutil.which("node") is None:
        return "no node"
    if not any(shutil.which(name) for name in CHROMIUM_NAMES):
        return "no chromium"
    if not _PLAYWRIGHT.is_file():
        return "playwright-core is not installed (make js)"
    return ""


class BrowserError(AssertionError):
    """What was asked of the page did not happen."""


class Browser:
    """One page; a new one with each ``open``."""

    def __init__(self, address: str) -> None:
        self.address = address
        chromium = next(path for name in CHROMIUM_NAMES if (path := shutil.which(name)))
        self._process = subprocess.Popen(
            ["node", str(Path(__file__).with_name("driver.mjs")), chromium],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        """End the browser."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def open(self) -> None:
        """Open ComfyUI in a fresh context and wait until the graph can be used."""
        self._do("open", url=self.address)
        self.wait_ready()

    def reload(self) -> None:
        """Reload the page, as a user does, and wait until the graph can be used."""
        self._do("reload")
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the frontend has set up every extension and loaded its first workflow.

        Its nodes would else come among those of a workflow that is loaded at the same moment.
        """
        self.wait(
            """const app = window.app;
            return Boolean(app?.canvas && app.extensionManager && app.graph
              && document.querySelector('#graph-canvas')
              && app.extensionManager.workflow.activeWorkflow
              && window.LiteGraph?.registered_node_types?.AdapterTrainerTrain);""",
            seconds=60,
        )

    def evaluate(self, body: str, argument: Any = None) -> Any:
        """The value of a function body run in the page with ``argument``."""
        return self._do("evaluate", body=body, argument=argument)

    def wait(self, body: str, argument: Any = None, seconds: float = 30) -> Any:
        """Wait until a function body returns something true, and return it."""
        return self._do("wait", body=body, argument=argument, ms=int(seconds * 1000))

    def click(self, selector: str, at: tuple[float, float] | None = None) -> None:
        """Click with the pointer; fails when something covers the element.

        Args:
            selector: The element.
            at: Where in it, in CSS pixels from its corner; None is its middle.
        """
        place = {} if at is None else {"position": {"x": at[0], "y": at[1]}}
        self._do("click", selector=selector, **place)

    def drop(self, paths: Path | Sequence[Path], x: float, y: float) -> None:
        """Drop files from outside onto a place of the page."""
        every = [paths] if isinstance(paths, Path) else paths
        self._do("drop", paths=[str(path) for path in every], x=x, y=y)

    def fill(self, selector: str, value: str) -> None:
        """Set a form field."""
        self._do("fill", selector=selector, value=value)

    def look(self, selector: str) -> bytes:
        """A PNG of the first such element as it looks now."""
        return base64.b64decode(self._do("look", selector=selector))

    def press(self, key: str) -> None:
        """Press a key."""
        self._do("press", key=key)

    def focus(self, selector: str) -> None:
        """Focus an element."""
        self._do("focus", selector=selector)

    def problems(self) -> list[str]:
        """Console errors and uncaught exceptions since the page was opened."""
        return self._do("problems")

    def forget_problems(self) -> None:
        """Forget them."""
        self._do("forget")

    def _do(self, operation: str, **fields: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"op": operation, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._answers.get(timeout=_ANSWER_SECONDS)
        if not line:
            raise BrowserError("the browser's driver ended")
        answer = json.loads(line)
        if "error" in answer:
            raise BrowserError(answer["error"])
        return answer["value"]

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")
