"""Promise 1 of the design: ComfyUI computes with an exported file what the trainer computed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from comfy.conftest import comfy_programs
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.fixtures.native_files import flux_to_native, make_native_flux
from tests.fixtures.strong_states import strengthen
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.families import get_family, locate_base
from trainer_core.formats import KeyMap, write_adapter

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

SIGMA, GUIDANCE = 0.7, 3.0
TEXT_WIDTH = {"flux": 48, "qwen_image": 3584}
GAIN = 0.2
NOISE, CHANGE, LEAST_CHANGE = 1e-5, 1e-3, 0.1
PICTURES = ("plain", "with reference")
KINDS = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr factor": {"kind": "lokr", "factor": 4},
    "lokr full": {"kind": "lokr", "factor": 4, "full_matrix": True},
    "lokr both": {"kind": "lokr", "rank": 2, "decompose_both": True},
}
CASES = [(family, kind) for family in TEXT_WIDTH for kind in KINDS]
# ComfyUI's bypass has no LoHa, and drops what is a part of a fused layer, as FLUX.1's q, k and v.
PARTS = r".*\.attn\.(to_[qkv]|add_[qkv]_proj)|.*\.proj_mlp"
BYPASSED = [(family, kind) for family, kind in CASES if kind != "loha"]


def share(value: torch.Tensor, of: torch.Tensor) -> float:
    return float(value.norm() / of.norm())


def faults(ours, theirs, facts, layers):
    """What the promise forbids, each with its measure; nothing when it is kept.

    Args:
        ours: Velocities of the trainer, by picture, with and without the adapter.
        theirs: Those of ComfyUI.
        facts: What ComfyUI said of the file.
        layers: How many layers the adapter changes.
    """
    found = {}
    if facts["messages"]:
        found["messages"] = facts["messages"]
    if facts["layers"] != layers:
        found["layers"] = facts["layers"]
    for picture in PICTURES:
        own, own_base = ours["with", picture], ours["without", picture]
        host, host_base = theirs["with", picture], theirs["without", picture]
        allowed = NOISE * own.norm() + (host_base - own_base).norm()
        error = (host - own).norm()
        if not error <= allowed:
            found["velocity", picture] = float(error / own.norm())
        change = own - own_base
        error = share((host - host_base) - change, change)
        if not error <= CHANGE:
            found["change", picture] = error
        if not share(change, own_base) >= LEAST_CHANGE:
            found["too small", picture] = share(change, own_base)
    return found


class Ours:
    """A base as the trainer loads it, and what it predicts with adapters on it.

    Attributes:
        velocities: By name and picture; the name ``without`` is the base alone.
        layers: Name to the number of adapted layers.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.family = get_family(name)
        self.folder = folder
        section = BaseSection(path=str(folder / f"{name}.safetensors"))
        location = locate_base(section, name, has_controls=True, needs_encoders=False)
        self.transformer = self.family.load_transformer(location, torch.float32, "cpu")
        self.inputs = load_file(folder / f"{name}.inputs")
        self.velocities: dict[tuple[str, str], torch.Tensor] = {}
        self.layers: dict[str, int] = {}
        self._predict("without")

    def adapt(self, name: str, **options) -> Path:
        """Attach a strong adapter, predict, and export it as a run does."""
        values = {"rank": 4, "alpha": 3.0, "targets": "all_linear", **options}
        presets = self.family.presets
        unused = self.family.unused_layers(self.transformer)
        adapter = attach(
            self.transformer, AdapterConfig(**values), presets=presets, unused=unused
        )
        state = strengthen(self.transformer, adapter, GAIN)
        adapter.eval()
        self._predict(name)
        adapter.detach()
        self.layers[name] = len(state.layers)
        path = self.folder / f"{self.family.name} {name}.safetensors"
        key_map = KeyMap(self.family.native_key, self.family.module_path)
        write_adapter(path, state, "comfyui", key_map, {})
        return path

    def _predict(self, name: str) -> None:
        text = {"text_embeddings": self.inputs["text"][0], "pooled_text": self.inputs["pooled"][0]}
        noisy, sigma, reference = (self.inputs[k] for k in ("noisy", "sigma", "reference"))
        for picture, controls in zip(PICTURES, ([], [reference]), strict=True):
            with torch.no_grad():
                self.velocities[name, picture] = self.family.predict(
                    self.transformer, noisy, sigma, [text], controls, GUIDANCE
                )


@dataclass
class Comparison:
    """Both sides, for every adapter and every spoiled file."""

    ours: dict[str, Ours]
    theirs: dict[str, dict[str, torch.Tensor]]
    facts: dict[str, dict[str, Any]]

    def faults(self, family, name, host_name=None):
        """`faults` of an adapter as the trainer has it, and of a file as ComfyUI read it."""
        host_name = host_name or name
        own = self.ours[family]
        return faults(
            self._sides(own.velocities, name, lambda *at: at),
            self._sides(self.theirs[family], host_name, "/".join),
            self.facts[family][host_name],
            own.layers[name],
        )
