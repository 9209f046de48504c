"""A cache folder that somebody sent: nothing hangs, nothing foreign is removed, nothing is lost."""

import contextlib
import json
import os
import time

import numpy as np
import pytest

from tests.fixtures.cache_world import same
from tests.fixtures.counted_calls import counted_calls
from trainer_core.data.cache.remove_unused import remove_unused
from trainer_core.data.cache.work_claims import Claims
from trainer_core.errors import StorageError
from trainer_core.filesystem.record_table import RecordTable

NOTHING = np.zeros((0, 32), np.uint8)
ELSEWHERE = json.dumps({"host": "another-machine", "pid": 7, "process_started": 1.0, "token": "ab"})


def _filled(world):
    for name in "ab":
        world.add(f"{name}.png", name)
    dataset = world.build()
    dataset.mark.release()
    for path in (world.cache / "uses").glob("*.use"):
        path.unlink()
    return dataset


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize("name", ["index/entries-x.log", "index/entries.table", "uses/x.use"])
def test_a_pipe_where_a_file_should_be_keeps_nobody_waiting(world, name):
    first = _filled(world)
    (world.cache / name).unlink(missing_ok=True)
    (world.cache / name).parent.mkdir(exist_ok=True)
    os.mkfifo(world.cache / name)
    again = world.build()
    assert same(first, again)
    assert again.encoded == 0
    again.mark.release()
    with contextlib.suppress(StorageError):
        assert remove_unused(world.cache, 10**9, NOTHING) is not None


def test_a_claim_of_another_machine_is_waited_for_and_not_for_ever(tmp_path):
    path = tmp_path / "claims" / ("ab" * 32)
    path.parent.mkdir()
    path.write_text(ELSEWHERE)
    with Claims(tmp_path) as claims:
        assert not claims.take(path.name)
        for age in (3600, -3600):
            path.write_text(ELSEWHERE)
            os.utime(path, (time.time() - age,) * 2)
            assert claims.take(path.name)
            claims.release([path.name])


def _table(folder) -> RecordTable:
    return RecordTable(folder, "t", [("key", "u1", (32,)), ("value", "<i8")], 1)


def _rows(table: RecordTable, *values: int):
    rows = table.rows(len(values))
    for row, value in zip(rows, values, strict=True):
        row["key"], row["value"] = value, value
    return rows


def test_a_full_disk_tears_one_record_and_not_those_behind_it(tmp_path, monkeypatch):
    table, write = _table(tmp_path), os.write
    table.add(_rows(table, 1))
    monkeypatch.setattr(
        os, "write", lambda to, content: write(to, content[: len(content) // 2 + 3])
    )
    table.add(_rows(table, 2, 3))
    monkeypatch.undo()
    table.add(_rows(table, 4))
    assert sorted(table.read()["value"].tolist()) == [1, 2, 4]


def test_a_table_that_claims_to_be_huge_is_read_in_parts_and_given_up(tmp_path):
    table = _table(tmp_path)
    table.add(_rows(table, *range(1, 5)))
    table.close()
    path = tmp_path / "t.table"
    whole, usual = path.stat().st_size, counted_calls(table.read)
    os.truncate(path, 3 << 30)
    assert counted_calls(table.read) < usual + 50
    assert sorted(table.read()["value"].tolist()) == [1, 2, 3, 4]
    os.truncate(path, whole)
    assert len(table.read()) == 4
