"""However ComfyUI keeps a MODEL's weights, a run trains on the numbers that its layers read."""

import numpy as np
import pytest
from comfyui.selection import selected

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

EXACT = ("bf16", "fp16", "fp16 in bf16", "bf16 cast", "fp16 cast", "fp8 cast", "packed")
PARTLY = "partly loaded"
QUICK = {("flux", "bf16 cast")}
ELSEWHERE = {
    ("sdxl", PARTLY),
    ("sdxl", "packed"),
    ("sdxl", "fp16 in bf16"),
    ("qwen_image", PARTLY),
    ("qwen_image", "fp8 cast"),
    ("qwen_image", "int8"),
}
"""What is looked at of other models; of FLUX.1 it is everything."""


def cases(*ways):
    mark = pytest.mark.exhaustive
    others = sorted(case for case in ELSEWHERE if case[1] in ways)
    every = [*(("flux", way) for way in ways), *others]
    return [pytest.param(*case, marks=() if case in QUICK else mark) for case in every]


@pytest.fixture(scope="module")
def results(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    wanted = sorted(selected(request, "name", "way"))
    found = comfy_host.results("graph_weights_process.py", folder, jobs=wanted)
    failed = any("error" in each for each in found.values())
    assert not failed, comfy_host.log.read_text()[-3000:]
    return {(name, way): found[f"{name} {way}"] for name, way in wanted}


@pytest.mark.parametrize(("name", "way"), cases(*EXACT, PARTLY))
def test_a_run_learns_what_it_learns_of_the_same_numbers_in_float32(name, way, results):
    found = results[name, way]
    assert found["losses"] == found["twin's losses"]
    assert found["same bits"]


@pytest.mark.parametrize(("name", "way"), cases("fp8 scaled"))
def test_quantised_weights_are_read_as_their_numbers(name, way, results):
    assert results[name, way]["apart"] <= 1e-5


@pytest.mark.parametrize(("name", "way"), cases(*EXACT, PARTLY, "fp8 scaled", "int8"))
def test_a_run_leaves_the_weights_and_its_file_loads(name, way, results):
    """Of int8 that is all: ComfyUI rounds its activations, so that no float32 is its twin."""
    found = results[name, way]
    losses = found["losses"]
    assert len(losses) == 4
    assert np.isfinite(losses).all()
    assert found["weights changed"] == []
    assert found["changed"] == []
    assert found["layers"] > 10
    if way != "packed":
        assert found["unread"] == []
        assert found["patches"] == found["layers"] or way == PARTLY
    if way == PARTLY:
        assert found["partly"]
        assert found["still partly"]
        assert found["patched in passes"] > 0
