"""A base in one file trains through the command line's own path, resumes, and is told apart."""

import pytest
from runs import metrics, noisy_images
from safetensors.torch import save_file

from tests.fixtures.flux_base import make_flux_base, make_flux_vae
from tests.fixtures.native_files import flux_to_native, make_native_flux
from trainer_core.config import RunConfig
from trainer_core.training import train


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A native file, its encoders in a folder, and two images."""
    folder = tmp_path_factory.mktemp("single")
    model = make_native_flux(layers=1, single_layers=1, joint=32)
    save_file(flux_to_native(model.state_dict()), folder / "flux.safetensors")
    encoders = make_flux_base(folder / "encoders")
    make_flux_vae(16).save_pretrained(encoders / "vae")
    noisy_images(folder / "data", 2)
    # The same base as a Diffusers folder, the reference.
    model.save_pretrained(encoders / "transformer")
    return folder


def settings(files, output, base, **training):
    return {
        "family": "flux",
        "base": {"path": str(base), "encoders": str(files / "encoders")},
        "dataset": {"path": str(files / "data"), "resolution": 64},
        "adapter": {"kind": "lora", "rank": 2},
        "training": {"steps": 2, "precision": "fp32", "checkpoint_every": 1} | training,
        "memory": {"device": "cpu", "threads": 1},
        "output": {"dir": str(output), "name": "run"},
    }


def run(*args, resume="none", **training):
    config = settings(*args, **training) | {"resume": resume}
    return train(RunConfig.model_validate(config))


def test_a_file_trains_as_the_same_weights_in_a_folder(files, tmp_path):
    from_file = run(files, tmp_path / "file", files / "flux.safetensors")
    from_folder = run(files, tmp_path / "folder", files / "encoders")
    assert from_file.status == "done"
    one, two = (metrics(result.folder) for result in (from_file, from_folder))
    # The same weights at another place in memory may be added up in another order.
    assert [step["loss"] for step in one] == pytest.approx([step["loss"] for step in two], rel=1e-6)
    assert one[0]["loss"] > 0.1
