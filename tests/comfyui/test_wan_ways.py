"""A run of Wan as a MODEL of the graph, and one from its file, give the same adapter."""

import json

import pytest

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

JOBS = {
    "wan21": {"file": "wan2.1_t2v.safetensors", "images": True},
    "wan22_i2v": {"file": "wan2.2_i2v_low_noise.safetensors", "dataset": {"end_frame": 1.0}},
    "wan21_i2v": {"file": "wan2.1_i2v.safetensors", "dataset": {"end_frame": 0.5}},
    "wan22_5b": {"file": "wan2.2_ti2v_5B.safetensors", "dataset": {"start_frame": 0.5}},
}


@pytest.mark.parametrize("name", JOBS)
def test_a_run_gives_one_adapter_by_both_ways(comfy_host, tmp_path, name):
    job = {"model": name, "images": False, **JOBS[name]}
    (tmp_path / "jobs.json").write_text(json.dumps([job]), encoding="utf-8")
    comfy_host.run("wan_ways_process.py", tmp_path, tmp_path / "jobs.json", folder=tmp_path)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))[name]
    assert "error" not in found, found
    assert found["keys"] == [True, True]
    assert found["layers"] == 2 * (10 + 2 * (name == "wan21_i2v"))
    ours, theirs = found["losses"]
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert found["apart"] <= 1e-4 < 1e-3 < found["changed"]
