"""Z-Image from a template to adapter files, by the command line, on a tiny base."""

from typing import get_args

import pytest
from runs import command, noisy_images

from tests.fixtures.z_image_base import make_z_image_base
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.config.adapter import AdapterKind

KINDS = get_args(AdapterKind)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_z_image_base(tmp_path_factory.mktemp("z_image") / "base")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(each, marks=pytest.mark.exhaustive) for each in KINDS[1:])]
)
def test_a_run_goes_from_template_to_adapter(kind, base, tmp_path, capsys, monkeypatch):
    settings = prepare(base, tmp_path, capsys, monkeypatch, kind)
    (report,) = command(capsys, "doctor", "run.yaml", *settings)
    assert report["run"]["adapter"]["layers"] == 2 * (4 + 3)
    file = trained(capsys, *settings)
    (told,) = command(capsys, "inspect", file)
    assert (told["family"], told["kind"]) == ("z_image", kind)
    assert adapter_family(file).name == "z_image"


def trained(capsys, *settings):
    """A run's adapter file."""
    result = command(capsys, "train", "run.yaml", *settings)[-1]["result"]
    assert (result["status"], len(result["pictures"])) == ("done", 2)
    (file,) = result["adapters"]
    return file


def prepare(base, tmp_path, capsys, monkeypatch, kind):
    """Write two images and a run file, go there, and give the settings of a tiny run."""
    (template,) = command(capsys, "template", "z_image")
    (tmp_path / "run.yaml").write_text(template["run_file"])
    noisy_images(tmp_path / "images", 2, 48)
    (tmp_path / "images" / "1.txt").write_text("a caption of many more words than the other has")
    monkeypatch.chdir(tmp_path)
    return [
        f"base.path={base}",
        "dataset.resolution=48",
        f"adapter.kind={kind}",
        "adapter.rank=2",
        "training.steps=2",
        "training.batch_size=2",
        "training.schedule.warmup_steps=0",
        "training.precision=fp32",
        "preview.prompts=[an image]",
        "preview.every=2",
        "preview.width=48",
        "preview.height=48",
        "preview.steps=2",
        "memory.device=cpu",
        "memory.blocks_to_swap=0",
        "output.layouts=[comfyui]",
    ]
