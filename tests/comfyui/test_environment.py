"""The tests bring an environment of their own to a user's ComfyUI, and only read what is there."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from comfyui.conftest import comfy_programs
from comfyui.environment import (
    UnavailableError,
    comfyui_python,
    environment_over,
    interpreter,
    packages_of,
)
from comfyui.snapshot import changes, snapshot

_WHERE = "import diffusers, torch; print(diffusers.__file__); print(torch.__file__)"


@pytest.mark.comfy
def test_a_server_that_ran_has_changed_nothing_of_the_users(server, files_of_the_user):
    assert server.get("/object_info/AdapterTrainerTrain")["AdapterTrainerTrain"]
    folder, _ = comfy_programs()
    assert str(folder / "main.py") in files_of_the_user
    host = packages_of(comfyui_python(folder))
    assert any(str(place / "torch") in files_of_the_user for place in host)
    assert changes(files_of_the_user, snapshot([folder, *host])) == []


@pytest.mark.comfy
@pytest.mark.exhaustive
def test_our_libraries_come_from_the_environment_and_torch_from_comfyui():
    folder, python = comfy_programs()
    host = packages_of(comfyui_python(folder))
    done = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, check=True)
    ours, theirs = done.stdout.split()
    if not any((place / "diffusers").is_dir() for place in host):
        assert packages_of(python)[0] in Path(ours).parents
    assert any(place in Path(theirs).parents for place in host)


@pytest.mark.comfy
def test_what_was_made_is_found_again():
    folder, python = comfy_programs()
    made = python.stat().st_mtime_ns
    environment_over.cache_clear()
    with ThreadPoolExecutor(2) as pool:
        hosts = [comfyui_python(folder)] * 2
        assert list(pool.map(environment_over, hosts)) == [python, python]
    assert python.stat().st_mtime_ns == made


@pytest.mark.exhaustive
def test_an_interpreter_without_what_comfyui_has_is_named_with_what_it_lacks(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=120)
    host = interpreter(bare)
    # install.py refuses such a Python before it asks for any network.
    with pytest.raises(UnavailableError, match=r"has no torch, transformers, numpy"):
        environment_over(host, tmp_path / "environments")


@pytest.mark.exhaustive
def test_without_a_network_the_reason_is_said(tmp_path, monkeypatch):
    """A Python with all of ComfyUI's own, and no place to get the rest from."""
    host = _python_without_ours(tmp_path / "host")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UnavailableError, match=r"diffusers.* could not be installed beside"):
        environment_over(host, tmp_path / "environments")


def test_a_missing_interpreter_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PYTHON", str(tmp_path / "python"))
    with pytest.raises(UnavailableError, match="no interpreter for ComfyUI"):
        comfyui_python(tmp_path)


CHANGES = {
    "new file": lambda file: (file.parent / "other").touch(),
    "new folder": lambda file: (file.parent / "__pycache__").mkdir(),
    "content": lambda file: os.utime(file, ns=(file.stat().st_mtime_ns + 1,) * 2),
    "removed": lambda file: file.unlink(),
    "new link": lambda file: (file.parent / "link").symlink_to(file),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change, tmp_path):
    kept = tmp_path / "folder" / "file"
    kept.parent.mkdir()
    kept.write_text("one")
    before = snapshot([tmp_path])
    assert changes(before, snapshot([tmp_path])) == []
    CHANGES[change](kept)
    assert changes(before, snapshot([tmp_path]))


def _python_without_ours(folder: Path) -> Path:
    """A Python that has the three libraries that every ComfyUI has, and pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    host = interpreter(folder)
    (own,) = packages_of(host)
    for place in packages_of(Path(sys.executable)):
        for package in place.iterdir():
            if package.name.split("-")[0] in ("torch", "transformers", "numpy", "pip"):
                (own / package.name).symlink_to(package)
    return host
