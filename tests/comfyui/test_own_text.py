"""A CLIP of another model is refused also where its texts are as wide as the model's own."""

import pytest
from comfyui.selection import selected
from comfyui.tiny_models.sizes import TINY

from tests.fixtures.tables import table

pytestmark = pytest.mark.comfy

REFUSED = table(__file__, "clips of other models")
"""Tiny MODELs to the CLIPs of ComfyUI's loaders that would train them on noise."""
OWN = table(__file__, "clips of their own")
"""Tiny MODELs to the CLIP that they are sampled with."""
OF_OTHERS = {"ovis": ["omnigen2", "aura"], "hidream": ["omnigen2", "sd3", "flux"]}
"""Those of which ComfyUI knows no text encoders, to CLIPs that it makes for others."""
QUICK = ("sd3", "ovis")


def cases(names):
    mark = pytest.mark.exhaustive
    return [pytest.param(name, marks=() if name in QUICK else mark) for name in names]


@pytest.fixture(scope="module")
def told(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_text")
    names = sorted(name for (name,) in selected(request, "name"))
    return comfy_host.results("own_text_process.py", folder, jobs=names)


@pytest.mark.parametrize("name", cases(TINY))
def test_another_models_clip_is_named_and_no_other(name, told):
    of_others = {clip for clip, said in told[name].items() if "are not those of" in said[1]}
    assert sorted(told[name].keys() - of_others) == sorted(REFUSED.get(name, []))
    assert of_others.isdisjoint({OWN[name], "tiny"})
    assert of_others.issuperset(OF_OTHERS.get(name, []))
    for found, expected, remedy in told[name].values():
        assert "tokens at the CLIP input, and" in found
        assert "the CLIP that the model is sampled with" in expected
        assert "Connect that CLIP" in remedy


def test_the_same_network_with_more_words_is_no_other_model(told):
    own, other = told["more words"]
    assert own is None
    assert other
