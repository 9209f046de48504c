"""Whole runs at other noise levels and with other schedules."""

from runs import assert_same_files, run_config

from trainer_core.training import train


def test_auto_is_the_familys_density_and_is_told(tmp_path, cache):
    runs = [
        train(run_config(tmp_path / name, cache, training={"steps": 2, "sigma": {"density": name}}))
        for name in ("auto", "shifted")
    ]
    assert_same_files(*(run.adapters for run in runs))
    assert "density: shifted" in (runs[0].folder / "run.yaml").read_text(encoding="utf-8")
