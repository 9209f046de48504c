"""A run of Wan as a MODEL of the graph, and one from its file, give the same adapter."""

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
    found = comfy_host.results("wan_ways_process.py", tmp_path, jobs=[job], inside=True)[name]
    assert "error" not in found, found
    assert found["keys"] == [True, True]
    assert found["layers"] == 2 * (10 + 2 * (name == "wan21_i2v"))
    ours, theirs = found["losses"]
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert found["apart"] <= 1e-4 < 1e-3 < found["changed"]
