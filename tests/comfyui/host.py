"""ComfyUI's interpreter without a server: scripts beside this file, run in it one at a time."""

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

_LONGEST = 900
"""Seconds that a script may take, on a machine with other work."""


class ComfyHost:
    """A process that has imported ComfyUI's loaders and forks for each script.

    Args:
        root: ComfyUI's folder.
        python: The interpreter.
        log: A file for what the scripts print.
    """

    def __init__(self, root: Path, python: Path, log: Path) -> None:
        self.root, self.python, self.log = root, python, log
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, Path(__file__).with_name("host_process.py")],
            env={**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *words: Path, folder: Path | None = None) -> str:
        """Run a script to its end, which has to be a good one, and give what it printed."""
        path = Path(__file__).with_name(script)
        request = [str(word) for word in (self.log, folder or Path.cwd(), path, *words)]
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _LONGEST)
        code = self._process.stdout.readline().strip() if ready else f"none within {_LONGEST} s"
        if not ready:  # its answer would be taken for that of the next script
            self.close()
            self._process = self._start()
        printed = self.log.read_text(encoding="utf-8", errors="replace")
        assert code == "0", f"exit code {code or 'of a process that ended'}\n{printed[-3000:]}"
        return printed

    def results(
        self, script: str, folder: Path, *words: Any, jobs: Any = None, inside: bool = False
    ) -> Any:
        """Run a script on a folder, ``jobs`` and words; gives the ``results.json`` that it writes.

        With ``inside`` it works in the folder.
        """
        if jobs is not None:
            words = (folder / "jobs.json", *words)
            words[0].write_text(json.dumps(jobs), encoding="utf-8")
        self.run(script, folder, *words, folder=folder if inside else None)
        return json.loads((folder / "results.json").read_text(encoding="utf-8"))

    def close(self) -> None:
        """End the process, also one that is still at work."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
