"""Captions and prompts of a MODEL reach its CLIP as KSampler's prompts do."""

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    return comfy_host.results("graph_captions_process.py", folder)


def test_a_clip_of_another_model_is_named_before_anything_is_encoded(found):
    for case, told in found["wrong"].items():
        assert told is not None, case
        what, expected, remedy, encoded = told
        assert "cannot predict" in what or "at the CLIP input" in what
        assert expected.startswith("the CLIP that the model is sampled with")
        assert remedy.startswith("Connect that CLIP")
        assert not encoded


@pytest.mark.exhaustive
def test_every_class_takes_its_own_clip(comfy_host, tmp_path):
    found = comfy_host.results("graph_captions_process.py", tmp_path, tmp_path)
    assert len(found) > 20
    assert not any(found.values()), found


@pytest.mark.parametrize("model", ["sdxl", "flux"])
def test_brackets_of_captions_are_letters_and_those_of_prompts_weights(found, model):
    for caption, facts in found[model].items():
        escaped = "\\" in caption
        assert facts == {"letters": True, "raw": True, "prompt": True, "told": not escaped}, caption
