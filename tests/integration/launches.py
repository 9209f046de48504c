"""Programs in two processes that talk to each other."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALONE = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
"""accelerate's launcher starts one process where there is no GPU, unless the base is in parts."""


def launch_two(
    folder: Path,
    program: str,
    *arguments: Path,
    environment: dict[str, str] | None = None,
    seconds: int = 150,
) -> subprocess.CompletedProcess[str]:
    """Run a program in two processes.

    Args:
        folder: Where it is written.
        program: Its text.
        arguments: What it is called with.
        environment: Set beside this process's.
        seconds: After which it has failed.
    """
    script = folder / "program.py"
    script.write_text(program)
    return launch([*ALONE, str(script), *map(str, arguments)], environment, seconds)


def launch(
    command: list[str], environment: dict[str, str] | None = None, seconds: int = 150
) -> subprocess.CompletedProcess[str]:
    """Run a launcher; its children find the library and the tests."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "integration")))
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **(environment or {})}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={**os.environ, **own},
    )
