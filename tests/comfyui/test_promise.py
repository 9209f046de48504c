"""Promise 1 of the design: ComfyUI computes with an exported file what the trainer computed."""

import json
import re
from functools import cache

import pytest
import torch
from comfyui.selection import selected
from fixtures.families import hosted, record
from fixtures.family_inputs import host_inputs, made_inputs
from fixtures.full_size import linear_layers
from fixtures.strong_states import strengthen
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.verify.load_proof import prove
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapter_files.write.write_plan import Options
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.families.registry import get_family

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

GAIN = 0.2
CHANGE = 1e-3
KINDS = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr factor": {"kind": "lokr", "factor": 4},
    "lokr full": {"kind": "lokr", "factor": 4, "full_matrix": True},
    "lokr both": {"kind": "lokr", "factor": -1, "rank": 2, "decompose_both": True},
    "oft": {"kind": "oft"},
    "lora dora": {"kind": "lora", "dora": True},
    "loha dora": {"kind": "loha", "dora": True},
    "lokr dora": {"kind": "lokr", "factor": 4, "dora": True},
}
WHOLE = "flux"
"""The family on which everything is tried: some of its layers ComfyUI has as slices of others."""

PLAIN = [kind for kind in KINDS if "dora" not in kind]
SLOW = "LoHa bypass mode is inefficient"


@cache
def part_layers(family):
    """Layers of the small model that ComfyUI has as slices of others."""
    key_map = get_family(family).layers.key_map
    keys = {path: key_map.to_native(path) for path in linear_layers(record(family).small())}
    return tuple(path for path, key in keys.items() if key is not None and key.part)


def layouts_of(family):
    """The same adapters in the other layouts that ComfyUI reads: (kind, layout)."""
    found = [("lora", "kohya"), ("loha", "kohya")]
    # ComfyUI has no LyCORIS name for some layers of these, which the load proof says of a file.
    if not get_family(family).layers.key_map.native_only:
        found += [(kind, "lycoris") for kind in PLAIN]
    fused = [("lora", "comfyui fused"), ("loha", "comfyui fused")]
    return [*found, *fused] if part_layers(family) else found


def bypassed_of(family):
    """Adapters for the bypass, which drops slices of layers: those of whole layers, or fused."""
    if not part_layers(family):
        return [("lora",), ("lokr factor",)]
    bypassed = (kind for kind in PLAIN if kind != "oft")
    return [*((f"{kind} whole",) for kind in bypassed), ("lora comfyui fused",), ("loha kohya",)]


def rename(tensors, layer, factor):
    tensors[f"{layer}x{factor}"] = tensors.pop(layer + factor)


def double_alpha(tensors, layer):
    tensors[f"{layer}.alpha"] = tensors[f"{layer}.alpha"] * 2


def exchange(tensors, first, second):
    tensors[first], tensors[second] = tensors[second], tensors[first]


def exchange_layers(tensors, first, second):
    for factor in (".lora_up.weight", ".lora_down.weight"):
        exchange(tensors, first + factor, second + factor)


CONTROLS = {
    ("lora", "a key renamed"): lambda t, one, two: rename(t, one, ".lora_up.weight"),
    ("lora", "alpha doubled"): lambda t, one, two: double_alpha(t, two),
    ("loha", "alpha doubled"): lambda t, one, two: double_alpha(t, one),
    ("lokr both", "alpha doubled"): lambda t, one, two: double_alpha(t, one),
    ("lokr full", "w1 and w2 swapped"): lambda t, one, two: exchange(
        t, f"{one}.lokr_w1", f"{one}.lokr_w2"
    ),
    ("lora", "layers exchanged"): exchange_layers,
}
"""(Kind, what is wrong) to how the file is spoiled, by two layers of equal sizes."""


def exchangeable(tensors, unused):
    """Two layers of an adapter file that have the same sizes, and that the velocity depends on."""
    seen = {}
    for key in tensors:
        layer, dot, ending = key.partition(".lora_up.weight")
        if not dot or ending or any(layer.endswith(each) for each in unused):
            continue
        down = tensors[f"{layer}.lora_down.weight"].shape
        first = seen.setdefault((tensors[key].shape, down), layer)
        # Of another kind, so that exchanging them is no matter of two blocks that are alike.
        if first != layer and re.sub(r"\d+", "", first) != re.sub(r"\d+", "", layer):
            return first, layer
    raise AssertionError("no two layers have the same sizes")


def cases(of):
    """All that there is on one family, and on each other family one of it, in turn.

    Of these, the first of the one family and that of every second other run in the quick set.
    """
    first, *others = sorted(hosted(), key=lambda family: family != WHOLE)
    found = [(first, *case) for case in of(first)]
    quick = {found[0]}
    for at, family in enumerate(others):
        own = list(of(family))
        found.append((family, *own[at % len(own)]))
        quick |= {found[-1]} if at % 2 else set()
    mark = pytest.mark.exhaustive
    return [pytest.param(*case, marks=() if case in quick else mark) for case in found]


def images_of(family):
    return ("plain", "with reference") if record(family).controls else ("plain",)


def faults(family, ours, theirs, facts, layers):
    """What the promise forbids, each with its measure; nothing when it is kept.

    Args:
        family: Its name.
        ours: The trainer's velocities, by ``with`` or ``without`` the adapter and image.
        theirs: Those of ComfyUI.
        facts: What ComfyUI said of the file.
        layers: How many layers the adapter changes.
    """
    messages = [text for text in facts["messages"] if not text.startswith(SLOW)]
    found = {"messages": messages} if messages else {}
    if facts["layers"] != layers:
        found["layers"] = facts["layers"]
    host = record(family).host
    for image in images_of(family):
        measured = measures(ours, theirs, image)
        base = measured["velocity without"]
        if not base <= host.tolerance:
            found["base", image] = base
        if not measured["velocity"] <= host.tolerance + base:
            found["velocity", image] = measured["velocity"]
        if not measured["change"] <= CHANGE:
            found["change", image] = measured["change"]
        if not measured["size"] >= host.least_change:
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
        self.family, self.folder, self.record = get_family(name), folder, record(name)
        section = BaseSection(path=str(folder / f"{name}.safetensors"))
        controls = bool(self.record.controls)
        location = locate_base(section, self.family, controls, needs_encoders=False)
        self.transformer = self.family.load_transformer(location, torch.float32, "cpu")
        self.inputs = made_inputs(self.record)
        save_file(host_inputs(self.record, *self.inputs), folder / f"{name}.inputs")
        self.velocities, self.states, self.layers = {}, {}, {}
        self._predict("without")

    def export(self, name, **options):
        """Attach a strong adapter, predict, and write it as a run does."""
        config = AdapterConfig(**{"rank": 4, "alpha": 3.0, "targets": "all_linear", **options})
        # Also what has no gradient, such as the end of Qwen-Image's last block: other blocks use
        # it.
        adapter = attach(self.transformer, config, presets=self.family.layers.presets).eval()
        state = strengthen(self.transformer, adapter, GAIN)
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
        state, key_map = self.states[name], self.family.layers.key_map
        write_adapter(path, state, layout, key_map, {}, options=options, proof=False)
        # Each layer that ComfyUI knows, or slice of one, has one alpha.
        self.layers[own] = sum(key.endswith(".alpha") for key in load_file(path))
        return path

    def exported(self, name):
        """The name of the adapter that a file was written from."""
        return max((each for each in self.states if name.startswith(each)), key=len)

    def _predict(self, name):
        noisy, sigma, text, controls = self.inputs
        for image in images_of(self.family.name):
            shown = [] if image == "plain" else controls
            with torch.no_grad():
                self.velocities[name, image] = self.family.prediction.predict(
                    self.transformer, noisy, sigma, [text], shown, self.record.guidance
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
            wanted: What tests look at: kinds, and pairs of a kind or name and what is done with it.
        """
        kept = record(family)
        native = kept.host.to_native(kept.small().state_dict())
        tensors = {name: tensor.contiguous() for name, tensor in native.items()}
        save_file(tensors, self.folder / f"{family}.safetensors")
        ours = self.ours[family] = Ours(self.folder, family)
        # Which layers can be exchanged is seen in this one.
        kinds = {"lora", *(case[0] for case in wanted)}
        files = {
            kind: ours.export(kind, **options) for kind, options in KINDS.items() if kind in kinds
        }
        for kind, layout in layouts_of(family):
            if (kind, layout) in wanted or (f"{kind} {layout}", "bypassed") in wanted:
                if kind not in files:
                    files[kind] = ours.export(kind, **KINDS[kind])
                files[f"{kind} {layout}"] = ours.write(kind, layout)
        uses = [(name, path, False) for name, path in files.items()]
        parts = [re.escape(path) for path in part_layers(family)]
        for (name,) in [*bypassed_of(family), *([("lora",)] if parts else [])]:
            dropped = family == WHOLE and name in ("lora", "lora whole")
            if (name, "bypassed") not in wanted and not dropped:
                continue
            if name.endswith(" whole"):
                options = KINDS[name.removesuffix(" whole")]
                files[name] = ours.export(name, **options, exclude=parts)
            uses.append((f"{name} bypassed", files[name], True))
        one, two = exchangeable(load_file(files["lora"]), kept.unused)
        for (kind, fault), spoil in CONTROLS.items():
            if (kind, fault) not in wanted:
                continue
            tensors = load_file(files[kind])
            spoil(tensors, one, two)
            path = self.folder / f"{family} {kind} {fault}.safetensors"
            save_file(tensors, path)
            uses.append((f"{kind} {fault}", path, False))
        self._jobs.append(
            {
                "base": str(self.folder / f"{family}.safetensors"),
                "inputs": str(self.folder / f"{family}.inputs"),
                "result": str(self.folder / f"{family}.result"),
                "sizes": {"detected": dict(kept.host.detected), "matched": dict(kept.host.matched)},
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
        images = images_of(family)
        return (
            {(a, p): own[at, p] for a, at in both[0].items() for p in images},
            {(a, p): host[f"{at}/{p}"] for a, at in both[1].items() for p in images},
        )

    def faults(self, family, name, use):
        """`faults` of a file that ComfyUI used, against an adapter of the trainer."""
        layers, facts = self.ours[family].layers[name], self.facts[family][use]
        return faults(family, *self.sides(family, name, use), facts, layers)


@pytest.fixture(scope="module")
def comparison(request, comfy_host, tmp_path_factory):
    comparison = Comparison(tmp_path_factory.mktemp("promise"))
    uses = selected(request, "family", "kind") | selected(request, "family", "kind", "layout")
    uses |= selected(request, "family", "kind", "fault")
    uses |= {(*case, "bypassed") for case in selected(request, "family", "name")}
    for family in sorted({WHOLE, *(family for family, *_ in uses)}):
        comparison.prepare(family, {tuple(case) for own, *case in uses if own == family})
    comparison.run(comfy_host)
    return comparison


@pytest.mark.parametrize(("family", "kind"), cases(lambda family: [(kind,) for kind in KINDS]))
def test_comfyui_computes_what_the_trainer_computed(family, kind, comparison):
    assert comparison.faults(family, kind, kind) == {}


@pytest.mark.parametrize(("family", "kind", "layout"), cases(layouts_of))
def test_every_layout_for_comfyui_keeps_the_promise(family, kind, layout, comparison):
    name = f"{kind} {layout}"
    assert comparison.faults(family, name, name) == {}


@pytest.mark.parametrize(("family", "kind", "fault"), cases(lambda family: CONTROLS))
def test_a_spoiled_file_fails_the_same_check(family, kind, fault, comparison):
    found = comparison.faults(family, kind, f"{kind} {fault}")
    for image in images_of(family):
        assert ("velocity", image) in found
        assert ("change", image) in found
    assert ("messages" in found) == (fault == "a key renamed")


@pytest.mark.parametrize("run", ["quick", pytest.param("whole", marks=pytest.mark.exhaustive)])
def test_the_load_proof_says_the_same_of_every_file(run, comparison):
    """What keeps the promise is proved, and what breaks it is not; of the files of this run."""
    for family, ours in comparison.ours.items():
        for name, path in comparison.files(family):
            state = ours.states[ours.exported(name)]
            proof = prove(path, get_family(family).layers.key_map, state=state)
            spoiled = any(name == f"{kind} {fault}" for kind, fault in CONTROLS)
            assert proof.ok != spoiled, (family, name, proof.text())
            assert len(proof.layers) >= len(state.layers)


@pytest.mark.parametrize(("family", "name"), cases(bypassed_of))
def test_the_bypass_keeps_the_promise_for_whole_layers(family, name, comparison):
    assert comparison.faults(family, name, f"{name} bypassed") == {}


def test_the_bypass_drops_the_parts_of_fused_layers_and_says_so(comparison):
    """A limit of ComfyUI, which the documentation names: the loader without bypass is needed."""
    family = WHOLE
    key_map = get_family(family).layers.key_map
    fused = {key_map.to_native(path).name for path in part_layers(family)}
    found = comparison.faults(family, "lora", "lora bypassed")
    whole = comparison.ours[family].layers["lora whole"]
    dropped = [text for text in found["messages"] if "not in model state_dict" in text]
    assert all(any(name in text for name in fused) for text in found["messages"])
    assert len(dropped) == comparison.ours[family].layers["lora"] - whole
    assert found["layers"] == whole
    assert ("velocity", "plain") in found
