"""Captions and prompts of a MODEL reach its CLIP as KSampler's prompts do."""

import json

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    comfy_host.run("graph_captions_process.py", folder)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", ["sdxl", "flux"])
def test_brackets_of_captions_are_letters_and_those_of_prompts_weights(found, model):
    for caption, facts in found[model].items():
        escaped = "\\" in caption
        assert facts == {"letters": True, "raw": True, "prompt": True, "told": not escaped}, caption
