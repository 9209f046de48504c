"""One adapter by both ways: through a family's own denoiser, and through the MODEL of its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from comfyui.conftest import write_images
from comfyui.made_encodings import MadeEncodings, made_latents
from comfyui.selection import selected
from fixtures.families import hosted, record
from safetensors.torch import load_file, save_file
from torch import nn

from trainer_core.adapter_files.names.key_map import is_swapped
from trainer_core.families.registry import get_family
from trainer_core.families.run_files import load_config
from trainer_core.training import train

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

QUICK = ("flux",)
CAPTIONS = {"a red diamond": 7, "a blue circle": 11}
SIDE, RANK, STEPS = 64, 4, 6


def whole_layers(family):
    """The layers that are one and the same Linear in both: path here to ComfyUI's name."""
    kept, key_map = record(family), get_family(family).key_map
    found = {}
    for path, module in kept.small().named_modules():
        key = key_map.to_native(path) if isinstance(module, nn.Linear) else None
        if key is not None and not key.part and not is_swapped(path, key_map):
            found[path] = (key.name, module)
    wide = {path for path, (_, module) in found.items() if min(module.weight.shape) >= RANK}
    return {path: found[path] for path in sorted(wide - kept.unused)}


def made_start(layers):
    """A LoRA in ComfyUI's names with which both ways begin; both of its factors have gradients."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, module in layers.values():
        rows, columns = module.weight.shape
        down = torch.randn(RANK, columns, generator=generator) / columns**0.5
        tensors[f"diffusion_model.{name}.lora_down.weight"] = down
        up = torch.randn(rows, RANK, generator=generator) / 10
        tensors[f"diffusion_model.{name}.lora_up.weight"] = up
    return tensors


def run_file(folder, family, way, targets):
    return {
        "family": family if way == "own" else "graph_model",
        "base": {"path": str(folder / "base.safetensors")} if way == "own" else {},
        "dataset": {"path": str(folder / "images"), "resolution": SIDE},
        "adapter": {
            "kind": "lora",
            "rank": RANK,
            "targets": [f"^{re.escape(each)}$" for each in targets],
            "start_from": str(folder / "start.safetensors"),
        },
        "training": {
            "steps": STEPS,
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"warmup_steps": 0},
            "sigma": {"density": "logit_normal"},
            "precision": "fp32",
            "guidance": record(family).guidance,
        },
        "preview": {"every": 0},
        "memory": {"device": "cpu"},
        "output": {"dir": str(folder / way), "name": "run"},
        "cache": {"dir": str(folder / f"{way}_cache")},
    }


class Both:
    """A family's base, prepared for both ways."""

    def __init__(self, folder, family):
        self.folder, self.family, self.kept = folder, family, record(family)
        self.layers = whole_layers(family)
        write_images(folder / "images", tuple(CAPTIONS), SIDE)
        native = self.kept.host.to_native(self.kept.small().state_dict())
        tensors = {name: tensor.contiguous() for name, tensor in native.items()}
        save_file(tensors, folder / "base.safetensors")
        self.start = made_start(self.layers)
        save_file(self.start, folder / "start.safetensors")
        generator = torch.Generator().manual_seed(9)
        self.texts, self.files = {}, {}
        for number, (caption, tokens) in enumerate({**CAPTIONS, "": 3}.items()):
            self.texts[caption] = self.kept.conditioning(generator, tokens)
            given = self.kept.host.given(self.texts[caption])
            self.files[caption] = str(folder / f"{number}.text")
            save_file({k: v.contiguous() for k, v in given.items()}, self.files[caption])

    @property
    def places(self):
        channels, high, _ = self.kept.latents
        return {"channels": channels, "pixels": 96 // high}

    def train(self):
        """The family's own way."""
        channels, pixels = self.places.values()
        made = MadeEncodings("own", self.texts, made_latents(channels), pixels)
        config = load_config(run_file(self.folder, self.family, "own", self.layers))
        return train(config, make_source=lambda *_: made)

    def job(self):
        """What the process trains."""
        host = self.kept.host
        names = [name for name, _ in self.layers.values()]
        return {
            "name": self.family,
            "base": str(self.folder / "base.safetensors"),
            "sizes": {"detected": dict(host.detected), "matched": dict(host.matched)},
            "texts": self.files,
            "run": run_file(self.folder, self.family, "model", names),
            **self.places,
        }


@pytest.fixture(scope="module")
def both(request, comfy_host, tmp_path_factory):
    """Both results of every family that a test of this run looks at."""
    found = {}
    folder = tmp_path_factory.mktemp("both")
    for (family,) in sorted(selected(request, "family")):
        (folder / family).mkdir()
        found[family] = Both(folder / family, family)
    (folder / "jobs.json").write_text(json.dumps([each.job() for each in found.values()]))
    said = comfy_host.run("both_ways_process.py", folder)
    theirs = json.loads((folder / "results.json").read_text())
    return {name: (each, each.train(), theirs[name], said) for name, each in found.items()}


def losses(folder):
    lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def norm(tensors):
    return sum(float(each.double().norm() ** 2) for each in tensors) ** 0.5


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.exhaustive)
        for each in hosted()
    ],
)
def test_the_model_trains_the_adapter_that_the_family_trains(family, both):
    prepared, own, theirs, said = both[family]
    assert "error" not in theirs, (theirs, said[-3000:])
    # The same noise at the same levels, or the losses would be others.
    pairs = zip(losses(own.folder), losses(theirs["folder"]), strict=True)
    assert max(abs(one / other - 1) for one, other in pairs) <= 1e-5
    ours, other = load_file(own.adapters[0]), load_file(theirs["adapter"])
    start = prepared.start
    assert ours.keys() == other.keys() >= start.keys()
    assert len(start) == 2 * len(prepared.layers)
    apart = norm(ours[name] - other[name] for name in ours)
    learned = norm(ours[name] - start[name] for name in start)
    assert apart <= 1e-4 * norm(ours.values())
    # Which is much less than what was learned.
    assert learned >= 1e-2 * norm(ours.values())
    assert apart <= 2e-3 * learned
