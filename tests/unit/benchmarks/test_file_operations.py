"""The benchmark of work on files measures what it says, on a small model."""

from benchmarks.file_operations import measure_files, measure_weights


def test_files_are_compared_with_copying_and_weights_with_torch(tmp_path):
    rows = {row.name: row for row in measure_files(tmp_path, blocks=1, rank=2, rounds=1)}
    assert rows["copy"].ratio == 1.0
    assert {"convert to comfyui, proved", "convert to diffusers", "inspect"} < set(rows)
    assert all(row.seconds > 0 for row in rows.values())
    weights = {row.name: row for row in measure_weights(64, rounds=1)}
    assert len(weights) == 8
    assert weights["float8_e4m3fn to bfloat16, torch"].ratio == 1.0
