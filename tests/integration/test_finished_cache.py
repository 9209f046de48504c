"""A finished cache is trained elsewhere, without images and without encoders."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from integration.runs import run_config

from trainer_core.errors import ConfigError, DatasetError
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.cache_manifest import read_manifest
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest

PROMPTS = ["a red circle on a blue background", "a green cross on a white background"]
SHORT = {"steps": 3, "gradient_accumulation_steps": 1}


def no_encoders(family, location):
    return Refusing()


class Refusing:
    """A source that no run on a finished cache may open."""

    identity = "none"

    def open(self):
        raise AssertionError("a finished cache was encoded again")

    def decoder(self):
        return lambda latents: torch.zeros(len(latents), 3, 64, 64)

    def close(self):
        pass


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoded")
    config = run_config(
        folder / "runs",
        folder / "cache",
        training=SHORT,
        preview={"prompts": PROMPTS, "width": 64, "height": 64, "steps": 2, "every": 2},
    )
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    return config, save_manifest(config, prepared)


def moved(encoded, folder, **overrides):
    """The same run with the cache in another folder, and no images."""
    config, manifest = encoded
    shutil.copytree(manifest.parent, folder / "cache")
    values = config.model_dump(mode="json")
    values["dataset"]["path"] = ""
    values["cache"] = {"manifest": str(folder / "cache" / manifest.name)}
    values["output"]["dir"] = str(folder / "runs")
    for name, section in overrides.items():
        values[name] = {**values[name], **section}
    return type(config).model_validate(values)


def test_previews_other_than_those_encoded_are_refused(encoded, tmp_path):
    config = moved(encoded, tmp_path, preview={"prompts": ["something else"]})
    with pytest.raises(ConfigError, match=r"preview\.prompts has 1 prompts"):
        train(config, make_source=no_encoders)
    other = [f"{PROMPTS[0]} --n red", PROMPTS[1]]
    config = config.model_copy(
        update={"preview": config.preview.model_copy(update={"prompts": other})}
    )
    with pytest.raises(ConfigError, match="not the 2 of the finished cache"):
        train(config, make_source=no_encoders)


def test_another_variant_than_that_encoded_is_refused(encoded, tmp_path):
    with pytest.raises(ConfigError, match="was encoded for"):
        train(moved(encoded, tmp_path, base={"variant": "edit"}), make_source=no_encoders)


def test_missing_file_of_the_cache_is_an_error_with_the_number(encoded, tmp_path):
    config = moved(encoded, tmp_path)
    victim = next((tmp_path / "cache" / "latents").glob("*.safetensors"))
    victim.unlink()
    with pytest.raises(DatasetError, match="1 of its files are missing"):
        train(config, make_source=no_encoders)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("samples"),
        lambda record: record.update(format=99),
        lambda record: record.update(samples=[]),
        lambda record: record["samples"].update(keys="../../../etc/passwd"),
        lambda record: record["samples"].update(kinds=["../../../etc", "text"]),
        lambda record: record["samples"]["forms"][0].update(size=[64]),
        lambda record: record["samples"]["forms"][0].update(counts=[-3] + [0] * 9),
        lambda record: record["samples"]["refs"].pop(),
        lambda record: record["samples"]["refs"].__setitem__(0, 10**6),
        lambda record: record["samples"]["refs"].__setitem__(0, -1),
        lambda record: record["samples"]["form_of"].__setitem__(0, "x"),
        lambda record: record["samples"]["weights"].pop(),
        lambda record: record["samples"]["names"].__setitem__(0, 7),
        lambda record: record["samples"].update(sources="00"),
    ],
)
def test_damaged_list_is_refused(encoded, tmp_path, damage):
    config = moved(encoded, tmp_path)
    path = next((tmp_path / "cache").glob("*.cache.json"))
    record = json.loads(path.read_text())
    damage(record)
    path.write_text(json.dumps(record))
    with pytest.raises(DatasetError, match="cannot be used"):
        read_manifest(type(path)(config.cache.manifest))


@pytest.mark.parametrize("held", ["share", "role"])
def test_nothing_is_trained_that_the_run_file_wants_held_out(encoded, tmp_path, held):
    config = moved(encoded, tmp_path, dataset={"validation": {"share": 0.3}})
    if held == "role":
        shown = {"folders": [{"path": "more", "role": "validation"}], "validation": {}}
        config = moved(encoded, tmp_path / "role", dataset=shown)
        manifest = Path(config.cache.manifest)
        record = json.loads(manifest.read_text())
        record["samples"]["forms"][0]["folder"] = 1
        manifest.write_text(json.dumps(record))
    words = {"share": r"dataset\.validation\.share is 0\.3", "role": r"folders\[0\]\.path has the"}
    with pytest.raises(ConfigError, match=f"{words[held]}.*finished cache was encoded to train"):
        train(config, make_source=no_encoders)


def test_what_a_finished_cache_has_nothing_of_is_told(encoded, tmp_path):
    told = []

    class Hears(SilentObserver):
        def notify(self, event):
            told.append(str(getattr(event, "message", event)))

    config = moved(encoded, tmp_path, dataset={"flip": True, "mask": {"source": "files"}})
    prepare(config, Hears(), SingleProcess(torch.device("cpu")), no_encoders)
    assert any("dataset.flip is true" in each and "no mirrored image" in each for each in told)
    assert any("dataset.mask.source is files" in each for each in told)
