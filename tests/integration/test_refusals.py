"""`doctor` refuses what `train` refuses before it encodes or loads anything, in the same words."""

import json

import pytest
from fixtures.combinations import some
from PIL import Image

from trainer_core.cli import main
from trainer_core.config.read_run_file import load_config
from trainer_core.errors import TrainerError
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver

START = "adapter.start_from={made}/run.safetensors"
OTHER_AXIS = ("adapter.dora=true", "adapter.dora_axis=output")

REFUSED = {
    "a magnitude that ComfyUI has no place for": OTHER_AXIS,
    "a kind that Diffusers does not read": ("adapter.kind=oft", "output.layouts=[diffusers]"),
    "no target": ("adapter.targets=[]",),
    "no layer of the name": ("adapter.targets=[to_x]",),
    "every layer left out": ("adapter.exclude=[.*]",),
    "a start that is not there": ("adapter.start_from=none.safetensors",),
    "a start of another kind": ("adapter.kind=loha", START),
    "a checkpoint that is not there": ("resume=nowhere",),
    "a list that is not there": ("cache.manifest=none.cache.json",),
    "another variant": ("base.variant=edit",),
    "more blocks to swap than there are": ("memory.blocks_to_swap=99",),
    "more blocks to checkpoint than there are": ("memory.blocks_to_checkpoint=99",),
    "a weighting that flow has not": ("training.loss.weighting=debiased",),
    "a preview of an edit": (
        "preview.controls=[[a.png]]",
        "preview.prompts=[a]",
        "preview.every=5",
    ),
    "masks that are not there": ("dataset.mask.source=files",),
    "a device that is not there": ("memory.device=nowhere",),
    "encoders on a device that is not there": ("memory.encoder_device=nowhere",),
    "another rank than the checkpoint's": ("resume={made}/run/v0", "adapter.rank=3"),
    "fewer steps than the checkpoint's": ("resume={made}/run/v0/checkpoints/000002",),
}

QUICK = [case for case in REFUSED if "checkpoint" not in case and "that" not in case]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Images, a run file, and the adapter of a short run of it."""
    folder = tmp_path_factory.mktemp("made")
    images = folder / "images"
    images.mkdir()
    for number in range(2):
        Image.new("RGB", (64, 64), (number * 50, 0, 0)).save(images / f"{number}.png")
        (images / f"{number}.txt").write_text("an image", encoding="utf-8")
    settings = {
        "family": "qwen_image",
        "base": {"path": "embedded"},
        "dataset": {"path": str(images), "resolution": 64},
        "output": {"dir": str(folder), "name": "run"},
        "adapter": {"kind": "lora"},
        "training": {"steps": 2},
    }
    (folder / "run.yaml").write_text(json.dumps(settings), encoding="utf-8")
    (file,) = train(load_config(folder / "run.yaml")).adapters
    file.rename(folder / "run.safetensors")
    settings["training"]["steps"] = 1
    (folder / "run.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return folder


class _Events(SilentObserver):
    def __init__(self) -> None:
        self.heard = []

    def notify(self, event) -> None:
        self.heard.append(event)


@pytest.mark.parametrize("case", some(REFUSED, *QUICK))
def test_doctor_says_what_train_is_refused_for(case, made, tmp_path, capsys):
    # A cache of its own, so that an image that is encoded first is heard of.
    words = [f"output.dir={tmp_path}", f"cache.dir={tmp_path / 'cache'}"]
    words += [each.format(made=made) for each in REFUSED[case]]
    events = _Events()
    with pytest.raises(TrainerError) as refused:
        train(load_config(made / "run.yaml", words), events)
    assert events.heard == []
    assert main(["doctor", str(made / "run.yaml"), *words, "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [refused.value.found in each for each in problems] == [True]
