"""Of all models that ComfyUI supports, those that make no images from text are refused by name."""

import pytest

from tests.fixtures.tables import table

pytestmark = pytest.mark.comfy

TRAINED = {
    *("SD3", "AuraFlow", "PixArtAlpha", "HunyuanDiT", "Flux", "LTXV", "HunyuanVideo", "WAN21_T2V"),
    *("WAN22_T2V", "CosmosT2IPredict2", "ZImage", "Lumina2", "HiDream", "Chroma", "Omnigen2"),
    *("QwenImage", "Ideogram4", "Krea2", "Kandinsky5Image", "Anima", "HunyuanImage21"),
    *("WAN21_I2V", "WAN21_Vace", "WAN21_FunControl2V", "HunyuanVideo15", "Kandinsky5"),
    *("CosmosI2VPredict2", "CosmosT2V", "GenmoMochi", "LTXAV", "MiniMaxH3"),
}
REFUSED = table(__file__, "refused models")


@pytest.fixture(scope="module")
def said(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    return comfy_host.results("refused_models_process.py", folder, inside=True)


@pytest.mark.parametrize("name", sorted(TRAINED))
def test_a_model_that_makes_images_from_text_is_trained(said, name):
    assert said[name][1] is None


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_is_refused_by_its_name(said, name):
    kind, (found, expected, remedy) = said[name]
    assert f"a MODEL of {kind}, which" in found
    assert REFUSED[name] in found
    assert "images" in expected
    assert "Choose" in remedy
