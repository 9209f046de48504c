import os
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for all runs: the encoders are loaded once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB that fills up for real."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine cannot mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
