"""Compare Checkpoints with a CLIP_VISION of the graph: likeness as transformers' CLIP has it."""

import json
import shutil

import numpy
import pytest
from comfyui.graphs import BASE, PROMPTS, TRAIN, graph, node, run_folder

from trainer_core.config.reading import load_config
from trainer_core.data.sources.combined import scan_all

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

VISION, COMPARE, MODEL = "41", "42", "wan21_i2v"


def unit(values):
    return numpy.asarray(values) / numpy.linalg.norm(values)


def test_the_likeness_is_that_of_clip_computed_apart(server, comfy_host, tmp_path):
    held = {"validation_share": 0.5}
    settings = {"checkpoint_every": 4}
    nodes = graph("like", previews=True, dataset=held, settings=settings, train={"steps": 8})
    nodes[VISION] = node("TinyModelForTests", model=MODEL, seed=0, precision="fp32")
    drawn = {"base": [BASE, 0], "previews": [PROMPTS, 0], "run": [TRAIN, 3]}
    compared = {"checkpoints": "all", "strengths": "1", "clip_vision": [VISION, 3]}
    nodes[COMPARE] = node("AdapterTrainerCompare", **drawn, **compared)
    result = server.run(nodes)
    folder = run_folder(server, "like")
    place = folder / "comparisons" / "000"
    record = json.loads((place / "comparison.json").read_text(encoding="utf-8"))

    config = load_config(folder / "run.yaml")
    samples = scan_all(config.dataset, seed=config.seed).samples
    held_out = [each.image for each in samples if each.validation]
    assert 0 < len(held_out) < len(samples)
    assert record["likeness"]["beside"].startswith(f"{len(held_out)} held-out image")
    for path in held_out:
        shutil.copy(path, tmp_path / f"held_{path.stem}.png")
    for name in record["rows"][0]["images"]:
        shutil.copy(place / name, tmp_path / name)
    comfy_host.run("likeness_process.py", tmp_path, folder=tmp_path)
    seen = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    others = [unit(each) for name, each in seen.items() if name.startswith("held_")]
    expected = [
        numpy.mean([unit(seen[name.removesuffix(".png")]) @ other for other in others])
        for name in record["rows"][0]["images"]
    ]
    found = record["rows"][0]["likeness"]
    numpy.testing.assert_allclose(found, expected, atol=1e-5)
    assert len({round(each, 5) for each in found}) > 1, "the images could not be told apart"
    labels = [each["label"] for each in record["columns"]]
    assert record["likeness"]["best"] == labels[1 + int(numpy.argmax(expected[1:]))]
    (text,) = result["outputs"][COMPARE]["text"]
    assert "most like the images" in text
