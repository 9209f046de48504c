"""A real ComfyUI server with the pack installed as a user would install it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.fixtures.pretend_cuda import runtime

ROOT = Path(__file__).resolve().parents[2]
PACK = "adapter-trainer"
_START_SECONDS = 180.0


class ComfyServer:
    """One server process, its folders and its HTTP interface.

    Attributes:
        data: Its base directory, with ``output``, ``input``, ``datasets`` and ``models``.
        log: Everything that it has printed.
    """

    def __init__(self, folder: Path, python: Path, data: Path, options: tuple[str, ...] = ()):
        self.data = data
        self.log = data / "server.log"
        self.port = _free_port()
        self.client = uuid.uuid4().hex
        packs = data / "custom_nodes"
        packs.mkdir(parents=True, exist_ok=True)
        if not (packs / PACK).exists():
            (packs / PACK).symlink_to(ROOT, target_is_directory=True)
        device = () if runtime.is_here() else ("--cpu",)
        command = [
            *(str(python), str(folder / "main.py"), *device, "--listen", "127.0.0.1"),
            *("--port", str(self.port), "--base-directory", str(data)),
            *("--disable-api-nodes", "--database-url", "sqlite:///:memory:", *options),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,  # the instruments end the server when it closes
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait_until_up()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        return json.loads(self.fetch(path))

    def fetch(self, path: str) -> bytes:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return answer.read()

    def status(self, path: str) -> int:
        """The status of a GET request, whatever it is."""
        try:
            self.fetch(path)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def post(self, path: str, value: Any) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.address + path,
            data=json.dumps(value).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text else None

    def queue(self, prompt: Mapping[str, Any]) -> str:
        """Queue a workflow in API format; a refused one is an assertion error."""
        status, answer = self.post("/prompt", {"prompt": prompt, "client_id": self.client})
        assert status == 200, json.dumps(answer, indent=1)
        # ComfyUI runs what else the prompt holds.
        assert not answer["node_errors"], json.dumps(answer, indent=1)
        return answer["prompt_id"]

    def result(self, prompt_id: str, timeout: float = 300.0) -> dict[str, Any]:
        """Wait for a queued workflow and give its history entry."""
        found: dict[str, Any] = {}

        def ended() -> bool:
            found.update(self.get(f"/history/{prompt_id}"))
            return prompt_id in found

        self.wait(ended, timeout)
        return found[prompt_id]

    def run(self, prompt: Mapping[str, Any], timeout: float = 300.0) -> dict[str, Any]:
        """Run a workflow to its end; it has to succeed."""
        result = self.result(self.queue(prompt), timeout)
        assert result["status"]["status_str"] == "success", self.failure(result)
        return result

    def forget(self) -> None:
        """Delete what graphs wrote, and have the server drop the results that it keeps."""
        for written in ("output", "temp", "models/loras"):
            shutil.rmtree(self.data / written, ignore_errors=True)
            (self.data / written).mkdir(parents=True)

        def forgotten() -> bool:
            # Asked again each time: a server that is just going to sleep does not hear it.
            if self.get("/instruments/flags") == {}:
                return True
            self.post("/free", {"free_memory": True})
            return False

        self.post("/free", {"free_memory": True})
        self.wait(forgotten, 60)
        self.post("/instruments/settle", {})

    def remaining(self) -> int:
        """Prompts that run or wait."""
        return self.get("/prompt")["exec_info"]["queue_remaining"]

    @staticmethod
    def failure(result: Mapping[str, Any]) -> dict[str, Any]:
        """What went wrong: ComfyUI's execution_error or execution_interrupted message."""
        for name, content in result["status"]["messages"]:
            if name in {"execution_error", "execution_interrupted"}:
                return {"event": name, **content}
        return {}

    def wait(self, condition: Callable[[], bool], timeout: float) -> None:
        end, pause = time.monotonic() + timeout, 0.01
        while not condition():
            if self._process.poll() is not None:
                raise AssertionError(f"the server died:\n{self.tail()}")
            if time.monotonic() > end:
                raise AssertionError(f"nothing came in {timeout} s:\n{self.tail()}")
            # Most of what is waited for is refused at once; a training is not to be disturbed.
            time.sleep(pause)
            pause = min(0.1, 1.5 * pause)

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin
        self._process.stdin.close()

    def _wait_until_up(self) -> None:
        def up() -> bool:
            with contextlib.suppress(OSError):
                self.get("/system_stats")
                # Another's server may have taken the port in the meantime.
                return self._process.poll() is None
            return False

        self.wait(up, _START_SECONDS)


@contextlib.contextmanager
def comfy_server(folder: Path, python: Path, data: Path, *options: str) -> Iterator[ComfyServer]:
    """Start a server for the length of a block."""
    server = ComfyServer(folder, python, data, options)
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
