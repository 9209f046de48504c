"""What tells, at the end of the tests, that a user's ComfyUI and its packages are as they were."""

import os

import pytest
from comfyui.snapshot import changes, snapshot

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
