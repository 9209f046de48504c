"""Files that are read while something else is computed."""

import time

from trainer_core.weights.read_ahead import read_ahead


def test_files_are_read_until_the_work_beside_them_ends(tmp_path):
    (file := tmp_path / "base.safetensors").write_bytes(bytes(1000))
    for path, room in ((file, 1000), (file, 999), (tmp_path / "absent", 1000)):
        with read_ahead([path], room) as thread:
            assert (thread is not None) == (path == file and room == 1000)
    (endless := tmp_path / "endless").symlink_to("/dev/zero")
    with read_ahead([endless], 0) as thread:
        time.sleep(0.1)
        assert thread.is_alive()
    assert not thread.is_alive()
