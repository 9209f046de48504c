"""Shows a folder in the desktop's own window, where ComfyUI runs on a machine with a desktop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def file_manager() -> str | None:
    """The program that shows a folder; None where there is no desktop."""
    if os.name == "nt" or sys.platform == "darwin":
        return shutil.which("explorer" if os.name == "nt" else "open")
    desktop = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return shutil.which("xdg-open") if desktop else None


def show_folder(program: str, folder: Path) -> None:
    """Start the program, and do not wait for it; `OSError` where it cannot be started."""
    nothing = subprocess.DEVNULL
    place = str(folder.absolute())
    # Windows' own would take a comma for the end of a path that is not in quotes.
    command = f'"{program}" "{place}"' if os.name == "nt" else [program, place]
    subprocess.Popen(
        command,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
