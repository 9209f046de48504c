"""A denoiser that a host has in memory is trained where it lies, as one that is loaded."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from runs import noisy_images

from tests.fixtures.made_up_family.base import make_lumen_base
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import RunError
from trainer_core.families.graph_model_denoiser import GRAPH_MODEL, LentDenoiser
from trainer_core.families.graph_model_family import lent_family
from trainer_core.families.registry import PACKAGES, get_family
from trainer_core.families.run_files import load_config
from trainer_core.inference.encoder_source import LazyEncoders
from trainer_core.tensors.safetensors_reader import open_tensors
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver

CPU = torch.device("cpu")
NAMES = ("files", "lent")


@pytest.fixture
def lumen(monkeypatch, tmp_path_factory):
    monkeypatch.setitem(PACKAGES, "lumen", "tests.fixtures.made_up_family")
    return get_family("lumen")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_lumen_base(tmp_path_factory.mktemp("lumen") / "base")


@pytest.fixture
def images(tmp_path):
    return noisy_images(tmp_path / "images", 2, 32)


def settings(tmp_path, images, name, **base):
    return {
        **base,
        "dataset": {"path": str(images), "resolution": 32},
        "training": {"steps": 3, "schedule": {"warmup_steps": 0}, "precision": "fp32"},
        "preview": {
            "prompts": ["an image"],
            "every": 3,
            "width": 32,
            "height": 32,
            "steps": 2,
            "guidance": 2.0,
        },
        "memory": {"device": "cpu"},
        "output": {"dir": str(tmp_path / "output"), "name": name},
        "cache": {"dir": str(tmp_path / "cache")},
    }


class Host:
    """Has a model of Lumen in memory, and lends it."""

    def __init__(self, lumen, base):
        self.lumen = lumen
        self.location = locate_base(BaseSection(path=str(base)), lumen, has_controls=False)
        self.model = lumen.load_transformer(self.location, torch.float32, "cpu")
        self.lent = 0

    def open(self, dtype, device, at_end: contextlib.ExitStack):
        self.lent += 1
        at_end.callback(self.back)
        return self.model

    def back(self):
        self.lent -= 1

    def family(self, fingerprint="a"):
        given = LentDenoiser(
            title="a model of a graph",
            fingerprint=fingerprint,
            channels=self.lumen.latent_shape(self.location, 32, 32)[0],
            pixels=8,
            open=self.open,
            sigmas=lambda steps: self.lumen.sampling_sigmas(self.location, steps, 32, 32),
        )
        lumen = self.lumen
        family = lent_family(
            given, lumen.prediction.predict, lumen.layers.key_map, lumen.latents.size_multiple
        )
        return replace(
            family, layers=lumen.layers, latents=replace(family.latents, patch=lumen.latents.patch)
        )

    def train(self, config, fingerprint="a"):
        def source(family, location):
            return LazyEncoders(config, self.lumen, self.location, CPU)

        return train(config, SilentObserver(), make_source=source, family=self.family(fingerprint))


def tensors(result):
    with open_tensors(result.adapters[0]) as file:
        return file.read_all(), file.metadata


def test_it_learns_the_same_bits_as_a_base_that_is_loaded(lumen, base, images, tmp_path):
    files = settings(tmp_path, images, "files", family="lumen", base={"path": str(base)})
    wanted, _ = tensors(train(load_config(files)))
    host = Host(lumen, base)
    before = {name: each.clone() for name, each in host.model.state_dict().items()}
    config = load_config(settings(tmp_path, images, "lent", family=GRAPH_MODEL))
    result = host.train(config)
    found, header = tensors(result)
    assert GRAPH_MODEL in "".join(header.values())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert any(each.abs().max() > 0 for name, each in found.items() if "alpha" not in name)
    drawn = [max((tmp_path / "output" / name).glob("v0/samples/*/0.png")) for name in NAMES]
    assert [each.parent.name for each in drawn] == ["000003"] * 2
    assert np.array_equal(*(np.asarray(Image.open(each)) for each in drawn))
    # It is given back as it was.
    after = host.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert host.lent == 0


def test_the_memory_of_a_lent_model_is_the_hosts(lumen, base, images, tmp_path):
    host = Host(lumen, base)

    def full(dtype, device, at_end):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    host.open = full
    config = load_config(settings(tmp_path, images, "full", family=GRAPH_MODEL))
    with pytest.raises(RunError, match="its host keeps the base's weights"):
        host.train(config)
