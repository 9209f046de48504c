"""What a real run measures of itself: it changes nothing, and a resumed run has all of it."""

import dataclasses
import json
import os

import pytest
from runs import metrics, run_config

from trainer_core.commands.console import result_text
from trainer_core.diffusion.noise_bands import PARTS
from trainer_core.training import train
from trainer_core.training.recorder import LEVELS

STEPS = 6


def run(folder, cache, norms_every=2, observer=None, **more):
    config = run_config(
        folder,
        cache,
        training={"steps": STEPS},
        metrics={"norms_every": norms_every, "trackers": [], "sigma_bands": 2},
        **more,
    )
    return train(config, observer)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, cache):
    return run(tmp_path_factory.mktemp("measured"), cache)


def test_lines_tell_the_bands_the_adapters_size_and_where_time_goes(measured):
    lines = [json.loads(line) for line in (measured.folder / "metrics.jsonl").open()]
    samples = sum(sum(line["levels"].values()) for line in lines)
    assert samples == STEPS * 4
    for line in lines:
        # The mean of the bands, each as often as it has samples, is the loss: no weights are set.
        assert len(line["bands"]) == 2
        counts = [0, 0]
        for part, count in line["levels"].items():
            counts[int(part) * 2 // PARTS] += count
        pairs = zip(line["bands"], counts, strict=True)
        mean = sum(band * count for band, count in pairs if count) / sum(counts)
        assert mean == pytest.approx(line["loss"], rel=1e-4)
        assert sum(line["times"].values()) <= line["step_seconds"] + 1e-3
    sizes = {line["step"]: line["norms"] for line in lines if "norms" in line}
    assert list(sizes) == [2, 4, 6]
    blocks = {block for block in sizes[6] if block.startswith("transformer_blocks.")}
    assert len(blocks) > 1
    assert all(0 < sizes[2][block] < sizes[6][block] for block in blocks)


def test_the_noise_levels_of_a_run_are_in_its_record_and_its_last_words(measured, monkeypatch):
    record = json.loads((measured.folder / "run.json").read_text())
    assert record[LEVELS] == list(measured.levels)
    assert sum(measured.levels) == STEPS * 4
    assert f"Noise levels of {STEPS * 4} samples:\n  0.00-0.05" in result_text(measured)
    adapter, then = result_text(measured).splitlines()[-2:]
    assert adapter == f"Adapter: {measured.adapters[0]}"
    assert then.split()[1:4] == ["adapter-trainer", "sample", str(measured.folder / "run.yaml")]
    assert (measured.folder / "run.yaml").is_file()
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        named = dataclasses.replace(measured, adapters=(r"D:\my runs\a.safetensors",))
        assert r'"adapter=D:\my runs\a.safetensors"' in result_text(named)


def test_nothing_of_it_changes_what_is_learned(measured, tmp_path, cache):
    plain = run(tmp_path, cache, norms_every=0)
    assert measured.adapters[0].read_bytes()[-4096:] == plain.adapters[0].read_bytes()[-4096:]
    assert [line["loss"] for line in metrics(plain.folder)] == list(measured.losses)
