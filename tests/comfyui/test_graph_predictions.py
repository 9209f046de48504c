"""What a family of a MODEL predicts: alone, in batches, with reference images; beside ComfyUI."""

import pytest
from comfyui.selection import selected
from comfyui.tiny_models.sizes import TINY

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

QUICK = ("flux2", "hunyuan_video", "krea2")
READ = ("flux", "flux_schnell", "ovis", "flux2", "z_image", "qwen_image")
"""Those whose network reads reference images."""

UNREAD = ("chroma", "krea2", "lumina2", "wan21")
"""Those that take them, and whose network does not look at them or fails."""

UNEQUAL = ("sdxl", "sd15", "flux", "flux2", "ltxv")
"""Those of which two samples share a pass though their captions differ in length."""


def cases(names, quick):
    mark = pytest.mark.exhaustive
    return [pytest.param(name, marks=() if name in quick else mark) for name in names]


@pytest.fixture(scope="module")
def predicted(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("predicted")
    names = sorted(name for (name,) in selected(request, "name"))
    found = comfy_host.results("graph_predict_process.py", folder, jobs=names)
    failed = {name: each for name, each in found.items() if "error" in each}
    assert not failed, comfy_host.log.read_text()[-3000:]
    return found


@pytest.mark.parametrize("name", cases(TINY, QUICK))
def test_a_prediction_is_what_a_sampler_of_comfyui_computes(name, predicted):
    found = predicted[name]
    assert found["own"] <= 1e-6
    assert found.get("own with reference", 0.0) <= 1e-6


@pytest.mark.parametrize("name", cases(TINY, QUICK))
def test_a_batch_is_predicted_as_its_samples_alone(name, predicted):
    """So its loss is the mean of theirs, also where their conditionings cannot share a pass."""
    found = predicted[name]
    assert found["batch"] <= 5e-6
    assert found.get("batch with reference", 0.0) <= 5e-6
    assert found["passes"] in (1, 2)


@pytest.mark.parametrize("name", cases(UNEQUAL, QUICK))
def test_samples_share_a_pass_where_comfyui_can_join_them(name, predicted):
    assert predicted[name]["passes"] == 1


@pytest.mark.parametrize("name", cases(READ, QUICK))
def test_a_reference_image_changes_the_prediction_of_who_reads_it(name, predicted):
    assert predicted[name]["reference"] > 0.01
    assert predicted[name]["checks"] == 2


@pytest.mark.parametrize("name", cases(UNREAD, QUICK))
def test_reference_images_are_refused_that_would_be_passed_over(name, predicted):
    found = predicted[name]
    assert "reference" not in found
    assert "control images, and a MODEL of" in found["refused"]
    assert found["checks"] == found["refused"]


def test_what_takes_no_reference_images_has_no_variant_for_them(predicted):
    others = predicted.keys() - {*READ, *UNREAD}
    assert others
    assert [name for name in others if predicted[name]["takes references"]] == []
