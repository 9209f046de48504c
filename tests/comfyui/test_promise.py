"""Promise 1 of the design: ComfyUI computes with an exported file what the trainer computed."""

from __future__ import annotations

import json
import re

import pytest
import torch
from comfyui.selection import selected
from fixtures.native_files import flux_to_native, make_native_flux
from fixtures.strong_states import strengthen
from fixtures.wide_qwen import write_wide_qwen
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.verify.proof import prove
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapter_files.write.write_plan import Options
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.families.registry import get_family

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

SIGMA, GUIDANCE = 0.7, 3.0
TEXT_WIDTH = {"flux": 48, "qwen_image": 3584}
GAIN = 0.2
NOISE, CHANGE, LEAST_CHANGE = 1e-5, 1e-3, 0.1
IMAGES = ("plain", "with reference")
KINDS = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr factor": {"kind": "lokr", "factor": 4},
    "lokr full": {"kind": "lokr", "factor": 4, "full_matrix": True},
    "lokr both": {"kind": "lokr", "factor": -1, "rank": 2, "decompose_both": True},
}
LARGE = "qwen_image"


def fewer(cases, *quick):
    """Cases, of which those of the large base but a few run in the whole suite only."""
    mark = pytest.mark.exhaustive
    return [
        pytest.param(*case, marks=mark if case[0] == LARGE and case not in quick else ())
        for case in cases
    ]


CASES = [(family, kind) for family in TEXT_WIDTH for kind in KINDS]
# The same adapters in the other layouts that ComfyUI reads: (family, kind, layout).
LAYOUTS = [
    ("flux", "lora", "comfyui fused"),
    ("flux", "loha", "comfyui fused"),
    ("flux", "lora", "kohya"),
    ("flux", "loha", "kohya"),
    *(("flux", kind, "lycoris") for kind in KINDS),
    ("qwen_image", "lora", "kohya"),
    ("qwen_image", "lokr full", "lycoris"),
]
# ComfyUI's bypass drops what is a part of a fused layer, as q, k and v of FLUX.1.
WHOLE = {"exclude": [r".*\.attn\.(to_[qkv]|add_[qkv]_proj)", r".*\.proj_mlp"]}
BYPASSED = [
    *(("flux", f"{kind} whole") for kind in KINDS),
    ("flux", "lora comfyui fused"),
    ("flux", "loha kohya"),
    ("qwen_image", "lora"),
    ("qwen_image", "lokr factor"),
]
PARTLY_BYPASSED = ("flux", "lora")
SLOW = "LoHa bypass mode is inefficient"
PARTS = r"double_blocks\.\d+\.(img|txt)_attn\.qkv|single_blocks\.\d+\.linear1"

IMAGE, TEXT = "diffusion_model.double_blocks.0.img_attn", "diffusion_model.double_blocks.0.txt_attn"
QUERY, KEY = (f"transformer.single_transformer_blocks.0.attn.to_{name}" for name in "qk")
QWEN = "diffusion_model.transformer_blocks.0.attn.to_out.0"


def rename(tensors, layer, factor):
    tensors[f"{layer}x{factor}"] = tensors.pop(layer + factor)


def double_alpha(tensors, layer):
    tensors[f"{layer}.alpha"] = tensors[f"{layer}.alpha"] * 2


def exchange(tensors, first, second):
    tensors[first], tensors[second] = tensors[second], tensors[first]


def exchange_layers(tensors, first, second):
    for factor in (".lora_up.weight", ".lora_down.weight"):
        exchange(tensors, first + factor, second + factor)


# (family, kind, what is wrong): how the file is spoiled.
CONTROLS = {
    ("flux", "lora", "a key renamed"): lambda t: rename(t, f"{IMAGE}.proj", ".lora_up.weight"),
    ("flux", "loha", "a key renamed"): lambda t: rename(t, f"{IMAGE}.proj", ".hada_w1_a"),
    ("flux", "lokr factor", "a key renamed"): lambda t: rename(t, QUERY, ".alpha"),
    ("flux", "lora", "alpha doubled"): lambda t: double_alpha(t, QUERY),
    ("flux", "loha", "alpha doubled"): lambda t: double_alpha(t, f"{IMAGE}.proj"),
    ("flux", "lokr factor", "alpha doubled"): lambda t: double_alpha(t, f"{IMAGE}.proj"),
    ("flux", "lokr both", "alpha doubled"): lambda t: double_alpha(t, f"{IMAGE}.proj"),
    ("flux", "lokr full", "w1 and w2 swapped"): lambda t: exchange(
        t, f"{IMAGE}.proj.lokr_w1", f"{IMAGE}.proj.lokr_w2"
    ),
    ("flux", "lora", "layers exchanged"): lambda t: exchange_layers(
        t, f"{IMAGE}.proj", f"{TEXT}.proj"
    ),
    ("flux", "lora", "slices exchanged"): lambda t: exchange_layers(t, QUERY, KEY),
    ("qwen_image", "lora", "a key renamed"): lambda t: rename(t, QWEN, ".lora_up.weight"),
    ("qwen_image", "lokr full", "w1 and w2 swapped"): lambda t: exchange(
        t, f"{QWEN}.lokr_w1", f"{QWEN}.lokr_w2"
    ),
}


def faults(ours, theirs, facts, layers):
    """What the promise forbids, each with its measure; nothing when it is kept.

    Args:
        ours: The trainer's velocities, by ``with`` or ``without`` the adapter and image.
        theirs: Those of ComfyUI.
        facts: What ComfyUI said of the file.
        layers: How many layers the adapter changes.
    """
    messages = [text for text in facts["messages"] if not text.startswith(SLOW)]
    found = {"messages": messages} if messages else {}
    if facts["layers"] != layers:
        found["layers"] = facts["layers"]
    for image in IMAGES:
        measured = measures(ours, theirs, image)
        base = measured["velocity without"]
        if not measured["velocity"] <= NOISE + base:
            found["velocity", image] = measured["velocity"]
        if not measured["change"] <= CHANGE:
            found["change", image] = measured["change"]
        if not measured["size"] >= LEAST_CHANGE:
            found["size", image] = measured["size"]
    return found


def measures(ours, theirs, image):
    """Relative differences of the velocity, of the base's and of the adapter's change."""
    own, own_base = ours["with", image], ours["without", image]
    host, host_base = theirs["with", image], theirs["without", image]
    change = own - own_base
    differences = {
        "velocity": (host - own, own),
        "velocity without": (host_base - own_base, own),
        "change": (host - host_base - change, change),
        "size": (change, own_base),
    }
    return {name: float(a.norm() / b.norm()) for name, (a, b) in differences.items()}


class Ours:
    """A base as the trainer loads it, and what it predicts with adapters on it.

    Attributes:
        velocities: By name of the adapter (``without`` for none) and image.
        states: Name of an adapter to it.
        layers: Name of a file to the number of layers, or parts of them, that ComfyUI changes.
    """

    def __init__(self, folder, name):
        self.family, self.folder = get_family(name), folder
        section = BaseSection(path=str(folder / f"{name}.safetensors"))
        location = locate_base(section, get_family(name), has_controls=True, needs_encoders=False)
        self.transformer = self.family.load_transformer(location, torch.float32, "cpu")
        self.inputs = load_file(folder / f"{name}.inputs")
        self.velocities, self.states, self.layers = {}, {}, {}
        self._predict("without")

    def export(self, name, **options):
        """Attach a strong adapter, predict, and write it as a run does."""
        config = AdapterConfig(**{"rank": 4, "alpha": 3.0, "targets": "all_linear", **options})
        # Of Qwen-Image also what the last block does not use: other blocks use it.
        adapter = attach(self.transformer, config, presets=self.family.presets).eval()
        state = strengthen(self.transformer, adapter, GAIN)
        assert all(bool(t.all()) for layer in state.layers.values() for t in layer.tensors.values())
        self._predict(name)
        adapter.detach()
        self.states[name] = state
        return self.write(name, "comfyui")

    def write(self, name, layout):
        """Write an adapter that was exported, in any layout."""
        own = name if layout == "comfyui" else f"{name} {layout}"
        path = self.folder / f"{self.family.name} {own}.safetensors"
        layout, _, fused = layout.partition(" ")
        options = Options(fused=bool(fused))
        state, key_map = self.states[name], self.family.key_map
        write_adapter(path, state, layout, key_map, {}, options=options, proof=False)
        # Each layer that ComfyUI knows, or slice of one, has one alpha.
        self.layers[own] = sum(key.endswith(".alpha") for key in load_file(path))
        return path

    def exported(self, name):
        """The name of the adapter that a file was written from."""
        return max((each for each in self.states if name.startswith(each)), key=len)

    def _predict(self, name):
        inputs = self.inputs
        text = {"text_embeddings": inputs["text"][0], "pooled_text": inputs["pooled"][0]}
        for image, controls in zip(IMAGES, ([], [inputs["reference"]]), strict=True):
            with torch.no_grad():
                self.velocities[name, image] = self.family.predict(
                    self.transformer, inputs["noisy"], inputs["sigma"], [text], controls, GUIDANCE
                )


class Comparison:
    """What both sides computed; every file is read by one process.

    Attributes:
        facts: What ComfyUI said, by family and name of the file's use.
        ours: By family.
    """

    def __init__(self, folder):
        self.folder, self.ours, self.facts, self._theirs, self._jobs = folder, {}, {}, {}, []

    def prepare(self, family, wanted):
        """Write base and adapters of a family, and predict with the trainer.

        Args:
            family: Its name.
            wanted: Of the large base: kind and layout, fault or ``bypassed`` of each use.
        """

        def wants(kind, *way):
            return family != LARGE or any(case[: 1 + len(way)] == (kind, *way) for case in wanted)

        write_base(self.folder, family)
        ours = self.ours[family] = Ours(self.folder, family)
        files = {
            kind: ours.export(kind, **options) for kind, options in KINDS.items() if wants(kind)
        }
        for own, kind, layout in LAYOUTS:
            if own == family and wants(kind, layout):
                files[f"{kind} {layout}"] = ours.write(kind, layout)
        uses = [(name, path, False) for name, path in files.items()]
        for name in (name for own, name in [*BYPASSED, PARTLY_BYPASSED] if own == family):
            if not wants(name, "bypassed"):
                continue
            if name.endswith(" whole"):
                options = KINDS[name.removesuffix(" whole")]
                files[name] = ours.export(name, **options, **WHOLE)
            uses.append((f"{name} bypassed", files[name], True))
        for (own, kind, fault), spoil in CONTROLS.items():
            if own == family and wants(kind, fault):
                tensors = load_file(files[kind])
                spoil(tensors)
                path = self.folder / f"{family} {kind} {fault}.safetensors"
                save_file(tensors, path)
                uses.append((f"{kind} {fault}", path, False))
        self._jobs.append(
            {
                "base": str(self.folder / f"{family}.safetensors"),
                "inputs": str(self.folder / f"{family}.inputs"),
                "result": str(self.folder / f"{family}.result"),
                "adapters": [(name, str(path), bypass) for name, path, bypass in uses],
            }
        )

    def run(self, comfy_host):
        """Let ComfyUI predict with everything that was prepared."""
        jobs = self.folder / "jobs.json"
        jobs.write_text(json.dumps(self._jobs), encoding="utf-8")
        comfy_host.run("promise_process.py", jobs)
        for family in self.ours:
            path = self.folder / f"{family}.result"
            self._theirs[family] = load_file(path)
            with safe_open(path, "pt") as file:
                self.facts[family] = json.loads(file.metadata()["facts"])

    def files(self, family):
        """Every file of a family that ComfyUI used, by name."""
        begin = f"{family} "
        for path in sorted(self.folder.glob(f"{begin}*.safetensors")):
            yield path.stem.removeprefix(begin), path

    def sides(self, family, name, use):
        """The velocities of both sides, with and without; ours are those of any layout."""
        name = self.ours[family].exported(name)
        own, host = self.ours[family].velocities, self._theirs[family]
        both = {"with": name, "without": "without"}, {"with": use, "without": "without"}
        return (
            {(a, p): own[at, p] for a, at in both[0].items() for p in IMAGES},
            {(a, p): host[f"{at}/{p}"] for a, at in both[1].items() for p in IMAGES},
        )

    def faults(self, family, name, use):
        """`faults` of a file that ComfyUI used, against an adapter of the trainer."""
        layers, facts = self.ours[family].layers[name], self.facts[family][use]
        return faults(*self.sides(family, name, use), facts, layers)


def write_base(folder, family):
    """The base's file, and inputs: sizes are multiples of 32 pixels, the reference is smaller."""
    if family == "flux":
        native = flux_to_native(make_native_flux().state_dict())
        tensors = {name: tensor.contiguous() for name, tensor in native.items()}
        save_file(tensors, folder / "flux.safetensors")
    else:
        write_wide_qwen(folder / "qwen_image.safetensors")
    generator = torch.Generator().manual_seed(5)
    inputs = {
        "noisy": torch.randn(1, 16, 12, 8, generator=generator),
        "reference": torch.randn(1, 16, 8, 8, generator=generator),
        "text": torch.randn(1, 7, TEXT_WIDTH[family], generator=generator),
        "pooled": torch.randn(1, 24, generator=generator),
        "sigma": torch.tensor([SIGMA]),
        "guidance": torch.tensor([GUIDANCE]),
    }
    save_file(inputs, folder / f"{family}.inputs")


@pytest.fixture(scope="module")
def comparison(request, comfy_host, tmp_path_factory):
    uses = selected(request, "family", "kind")
    uses |= selected(request, "family", "kind", "layout")
    uses |= selected(request, "family", "kind", "fault")
    uses |= {(*case, "bypassed") for case in selected(request, "family", "name")}
    comparison = Comparison(tmp_path_factory.mktemp("promise"))
    for family in TEXT_WIDTH:
        comparison.prepare(family, {tuple(case) for own, *case in uses if own == family})
    comparison.run(comfy_host)
    yield comparison
    for path in comparison.folder.glob("*.safetensors"):
        path.unlink()  # they are large


@pytest.mark.parametrize(("family", "kind"), fewer(CASES, (LARGE, "lora"), (LARGE, "lokr factor")))
def test_comfyui_computes_what_the_trainer_computed(family, kind, comparison):
    assert comparison.faults(family, kind, kind) == {}


@pytest.mark.parametrize(("family", "kind", "layout"), fewer(LAYOUTS, (LARGE, "lora", "kohya")))
def test_every_layout_for_comfyui_keeps_the_promise(family, kind, layout, comparison):
    name = f"{kind} {layout}"
    assert comparison.faults(family, name, name) == {}


@pytest.mark.parametrize("family", TEXT_WIDTH)
def test_the_load_proof_says_the_same_of_every_file(family, comparison):
    """What keeps the promise is proved, and what breaks it is not."""
    for name, path in comparison.files(family):
        state = comparison.ours[family].states[comparison.ours[family].exported(name)]
        proof = prove(path, get_family(family).key_map, state=state)
        spoiled = any(name == f"{kind} {fault}" for own, kind, fault in CONTROLS if own == family)
        assert proof.ok != spoiled, (name, proof.text())
        assert len(proof.layers) >= len(state.layers)


@pytest.mark.parametrize(
    ("family", "kind", "fault"), fewer(CONTROLS, (LARGE, "lora", "a key renamed"))
)
def test_a_spoiled_file_fails_the_same_check(family, kind, fault, comparison):
    found = comparison.faults(family, kind, f"{kind} {fault}")
    for image in IMAGES:
        assert ("velocity", image) in found
        assert ("change", image) in found
    assert ("messages" in found) == (fault == "a key renamed")


@pytest.mark.parametrize(("family", "name"), fewer(BYPASSED, (LARGE, "lora")))
def test_the_bypass_keeps_the_promise_for_whole_layers(family, name, comparison):
    assert comparison.faults(family, name, f"{name} bypassed") == {}


def test_the_bypass_drops_the_parts_of_fused_layers_and_says_so(comparison):
    """A limit of ComfyUI, which the documentation names: FLUX.1 needs the loader without bypass."""
    family, name = PARTLY_BYPASSED
    found = comparison.faults(family, name, f"{name} bypassed")
    whole = comparison.ours[family].layers[f"{name} whole"]
    dropped = [text for text in found["messages"] if "not in model state_dict" in text]
    assert all(re.search(PARTS, text) for text in found["messages"])
    assert len(dropped) == comparison.ours[family].layers[name] - whole
    assert found["layers"] == whole
    assert ("velocity", "plain") in found
