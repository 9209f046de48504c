"""Run what failed in a run of the tests again, alone; where it passes then, name it as unsteady.

A case may lose a race on a busy machine. It is a fault all the same, but one of its test, and no
reason to refuse everything else. More than a few at once are no accident.

Usage: again.py REPORT UNSTEADY    a report that tests/conftest.py writes, and the file of names
"""

import json
import os
import subprocess
import sys
from pathlib import Path

MOST = 3


def main() -> int:
    """0 when few cases failed and all of them pass now."""
    report, unsteady = map(Path, sys.argv[1:])
    failed = json.loads(report.read_text(encoding="utf-8"))["failed"] if report.is_file() else []
    if not failed or len(failed) > MOST:
        return 1
    print(f"Again, alone: {', '.join(failed)}", flush=True)
    variables = {**os.environ, "MARKER_REPORT": "", "OMP_NUM_THREADS": "1"}
    command = [".venv/bin/pytest", "--quiet", "-p", "no:cacheprovider", *failed]
    if subprocess.run(command, env=variables, check=False).returncode:
        return 1
    with unsteady.open("a", encoding="utf-8") as file:
        file.writelines(f"Unsteady, mend it next: {name}\n" for name in failed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
