"""Z-Image from a template to adapter files, by the command line, on a tiny base."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from tests.fixtures.z_image_base import make_z_image_base
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.cli import main
from trainer_core.config.adapter import AdapterKind

KINDS = get_args(AdapterKind)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_z_image_base(tmp_path_factory.mktemp("z_image") / "base")


def command(capsys, *words):
    """What a command prints as JSON; it ends well."""
    code = main([*map(str, words), "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(each, marks=pytest.mark.exhaustive) for each in KINDS[1:])]
)
def test_a_run_goes_from_template_to_adapter(kind, base, tmp_path, capsys, monkeypatch):
    (template,) = command(capsys, "template", "z_image")
    (tmp_path / "run.yaml").write_text(template["run_file"])
    (tmp_path / "images").mkdir()
    for index, caption in enumerate(("short", "a caption of many more words than the other has")):
        pixels = np.random.default_rng(index).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index}.png")
        (tmp_path / "images" / f"{index}.txt").write_text(caption)
    monkeypatch.chdir(tmp_path)
    settings = [
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
    (report,) = command(capsys, "doctor", "run.yaml", *settings)
    assert report["run"]["adapter"]["layers"] == 2 * (4 + 3)
    events = command(capsys, "train", "run.yaml", *settings)
    result = events[-1]["result"]
    assert (result["status"], len(result["pictures"])) == ("done", 2)
    (file,) = result["adapters"]
    (told,) = command(capsys, "inspect", file)
    assert (told["family"], told["kind"]) == ("z_image", kind)
    assert adapter_family(file).name == "z_image"
