"""Programs in two processes that talk to each other."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALONE = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
"""accelerate's launcher starts one process where there is no GPU, unless the base is in parts."""
FORKED = [sys.executable, str(Path(__file__).with_name("forked_ranks.py"))]
"""The same for what does not depend on how the two are started."""


def launch_two(
    folder: Path,
    program: str,
    *arguments: Path,
    launcher: Sequence[str] = ALONE,
    seconds: int = 150,
) -> subprocess.CompletedProcess[str]:
    """Run a program in two processes."""
    script = folder / "program.py"
    script.write_text(program)
    return launch([*launcher, str(script), *map(str, arguments)], seconds=seconds)


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
