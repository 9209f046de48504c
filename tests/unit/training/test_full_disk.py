"""What finds no room is told once, kept, and written later in its order."""

import contextlib

from tests.fixtures.small_disk import fill, small_disk  # noqa: F401
from trainer_core.errors import StorageError
from trainer_core.training.metrics.metrics_file import AppendedLines


def test_lines_that_find_no_room_are_kept_and_written_in_order(small_disk):  # noqa: F811
    path = small_disk / "lines"
    lines = AppendedLines(path)
    written = [f"{number:05d} {'x' * 700}" for number in range(60)]
    for line in written[:3]:
        lines.append(line)
    fill(small_disk)
    for line in written[3:30]:
        # What is left of the file's last page takes a few.
        with contextlib.suppress(StorageError):
            lines.append(line)
    assert lines._pending
    on_disk = path.read_text()
    assert on_disk.endswith("\n"), "a part of a line is on the disk"
    assert on_disk.splitlines() == written[: len(on_disk.splitlines())]
    (small_disk / "filler").unlink()
    for line in written[30:]:
        lines.append(line)
    assert not lines._pending
    lines.close()
    lines.close()
    assert path.read_text().splitlines() == written
