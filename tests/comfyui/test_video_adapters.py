"""Adapter files of models of videos, in every trainer's spelling: read, converted and proven."""

import json

import pytest
from comfyui.selection import selected
from fixtures.combinations import rarely

pytestmark = pytest.mark.comfy

EVERY = (
    *("wan21_i2v", "hunyuan_video", "hunyuan_video15", "ltxv", "ltxav", "kandinsky5"),
    "cosmos_predict2",
)
OF_ALL = ("musubi", "ai-toolkit", "diffusers", "diffsynth", "diffsynth bare", "fun", "onetrainer")
QUICK = [("wan21_i2v", "lightx2v"), ("hunyuan_video15", "musubi parts"), ("ltxv", "diffusers")]
MORE = [
    *((model, spelling) for model in EVERY for spelling in OF_ALL),
    *(("wan21_vace", spelling) for spelling in ("diffusers", "lightx2v", "musubi")),
    *(("hunyuan_video", spelling) for spelling in ("tencent", "musubi parts")),
    *(("hunyuan_video15", "tencent"), ("wan21_i2v", "fun part")),
]
CASES = [*QUICK, *rarely(case for case in MORE if case not in QUICK)]

WHOLE = {
    *((model, spelling) for model in EVERY for spelling in ("musubi", "ai-toolkit")),
    *((model, "tencent") for model in ("hunyuan_video", "hunyuan_video15")),
    *((model, "diffsynth bare") for model in ("ltxv", "ltxav", "kandinsky5")),
    *(("wan21_vace", "musubi"), ("wan21_i2v", "fun"), ("kandinsky5", "diffusers")),
}
"""What ComfyUI loads as it is."""


@pytest.fixture(scope="module")
def found(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("video_adapters")
    cases = sorted(selected(request, "model", "spelling"))
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    return comfy_host.results("video_adapters_process.py", folder)


@pytest.mark.parametrize(("model", "spelling"), CASES)
def test_a_file_of_another_trainer_is_converted_so_that_comfyui_loads_all(model, spelling, found):
    case = found[f"{model} / {spelling}"]
    converted = case["converted"]
    assert case["changed"] > 20
    assert (converted["unread"], converted["missing"]) == ([], [])
    assert converted["largest"] < 1e-6
    proven, largest = case["proof"]
    assert proven
    assert largest < 1e-6
    # A graph's MODEL reads the file itself, in as many layers.
    assert case["layers on the graph"] > 20


@pytest.mark.parametrize(("model", "spelling"), CASES)
def test_the_proof_names_what_comfyui_does_not_load_as_it_is(model, spelling, found):
    case = found[f"{model} / {spelling}"]
    assert case["proof of it"] == case["as it is"]["unread"]
    assert bool(case["as it is"]["unread"]) == ((model, spelling) not in WHOLE)
