"""Clips that begin with an image: what a MODEL is given of it is what ComfyUI's own nodes give."""

import pytest
from comfyui.test_base_from_model import check

pytestmark = pytest.mark.comfy

CLASSES = {
    "wan22_i2v": {"model": "wan22_i2v"},
    "wan22_i2v_ends": {"model": "wan22_i2v", "ends": True, "kind": "lokr", "guidance": 2.0},
    "wan21_i2v": {"model": "wan21_i2v", "kind": "loha"},
    "wan21_i2v_ends": {"model": "wan21_i2v", "ends": True},
    "wan22_5b": {"model": "wan22_5b", "guidance": 2.0},
    "ltxv": {"model": "ltxv", "kind": "lokr", "guidance": 2.0},
    "ltxv_slow": {"model": "ltxv", "told": 12.0},
    "ltxav": {"model": "ltxav", "guidance": 2.0},
    "cosmos_predict2_i2v": {"model": "cosmos_predict2_i2v", "guidance": 2.0},
    "hunyuan_video15": {"model": "hunyuan_video15", "kind": "loha"},
    "hunyuan_video15_lokr": {"model": "hunyuan_video15", "kind": "lokr"},
    "kandinsky5": {"model": "kandinsky5", "kind": "oft"},
}
CLEAN = ("wan22_5b", "ltxv", "ltxv_slow", "ltxav", "kandinsky5", "cosmos_predict2_i2v")
"""Those that predict nothing of the first frame."""


def looked_at(comfy_host, folder, job):
    return comfy_host.results("start_frames_process.py", folder, jobs=[job], inside=True)[
        job["name"]
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "how"),
    [("wan21_vace", "alone"), ("wan21_fun_control", "alone"), ("wan21_fun_control", "begun")],
)
def test_a_control_clip_steers_a_clip_as_in_comfyui(comfy_host, tmp_path, name, how):
    job = {"steps": 12, "name": name, "model": name, "steered": how}
    found = looked_at(comfy_host, tmp_path, job)
    check(found, name)
    assert (found["variant"], found["entries"], found["latent frames"]) == ("edit", [], 5)
    assert found["step"] <= 1e-6
    assert found["effect"] > 0.01


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name in ("wan22_5b", "ltxv_slow") else pytest.mark.exhaustive
        )
        for name in CLASSES
    ],
)
def test_a_clip_begins_with_an_image_as_in_comfyui(comfy_host, tmp_path, name):
    job = {"steps": 12, "name": name, **CLASSES[name]}
    found = looked_at(comfy_host, tmp_path, job)
    check(found, name)
    # The same bits as of ComfyUI's node, and one step of its sampler.
    assert (found["entries"], found["negative"], found["latent frames"]) == ([], [], 5)
    assert found["step"] <= 1e-6
    assert found["batch"] <= 5e-6
    assert found["effect"] > 0.01
    # A model that reads the frames per second is told those of the clips.
    assert (found["effect of the rate"] > 0.01) == (name == "ltxv_slow")
    # What is given has no part in the loss, and the rest counts as if it were all.
    first, *rest = found["gradient"]
    if name in CLEAN:
        assert found["clean"] == [1.0, 0.0, 0.0, 0.0, 0.0]
        assert first == 0.0
        assert found["loss"] == pytest.approx(found["loss of the rest"], rel=1e-6)
    else:
        assert found["clean"] is None
        assert first > 0.0
        assert found["loss"] == pytest.approx(found["plain loss"], rel=1e-6)
    assert min(rest) > 0.0
