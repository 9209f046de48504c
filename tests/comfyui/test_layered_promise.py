"""ComfyUI computes what the trainer computed of an image and its layers."""

import json

import pytest
import torch
from comfyui.readings import relative
from fixtures.families import record
from fixtures.native_files import make_native_qwen
from fixtures.strong_states import strengthen
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.families.registry import get_family

# `make test` checks the promise on other families: test_promise.
pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.exhaustive]

FAMILY = get_family("qwen_image")
IMAGE = "with reference"
KINDS = {
    "lora": {"kind": "lora"},
    "lokr": {"kind": "lokr", "factor": 4},
    "oft": {"kind": "oft"},
    "lora dora": {"kind": "lora", "dora": True},
}
LAYOUTS = ("comfyui", "kohya")


def inputs(frames=3, side=16):
    """An image with layers, large enough that both put the text in the same rotary place."""
    generator = torch.Generator().manual_seed(2)
    noisy = torch.randn(1, 16, frames, side, side, generator=generator)
    control = torch.randn(1, 16, side, side, generator=generator)
    text = torch.randn(1, 7, 48, generator=generator)
    return {
        "noisy": noisy,
        "sigma": torch.tensor([0.7]),
        "guidance": torch.tensor([1.0]),
        "given/cross_attn": text,
        "controls/reference_latents/0": control,
    }


def predict(transformer, given):
    text = [{"text_embeddings": given["given/cross_attn"][0]}]
    controls = [given["controls/reference_latents/0"]]
    with torch.no_grad():
        return FAMILY.prediction.predict(
            transformer, given["noisy"], given["sigma"], text, controls, 1.0
        )


class Sides:
    """What both sides predict for each adapter, in each layout that ComfyUI reads."""

    def __init__(self, folder, comfy_host):
        small = make_native_qwen(use_additional_t_cond=True, use_layer3d_rope=True)
        base, self.ours, uses = folder / "qwen_image_layered.safetensors", {}, []
        save_file(small.state_dict(), base)
        location = locate_base(BaseSection(path=str(base)), FAMILY, True, needs_encoders=False)
        transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
        given = inputs()
        self.ours["without"] = predict(transformer, given)
        for kind, options in KINDS.items():
            config = AdapterConfig(rank=4, alpha=3.0, targets="all_linear", **options)
            adapter = attach(transformer, config, presets=FAMILY.layers.presets).eval()
            state = strengthen(transformer, adapter, 0.2)
            self.ours[kind] = predict(transformer, given)
            adapter.detach()
            for layout in LAYOUTS if "dora" not in kind else LAYOUTS[:1]:
                path = folder / f"{kind} {layout}.safetensors"
                write_adapter(path, state, layout, FAMILY.layers.key_map, {}, proof=False)
                uses.append((f"{kind} {layout}", str(path), False))
        # Frames too many for so small an image: Diffusers then puts the text further away.
        self.far = predict(transformer, inputs(7))
        host = record("qwen_image").host
        sizes = {"detected": dict(host.detected), "matched": dict(host.matched)}
        jobs = []
        for name, more in (("near", given), ("far", inputs(7))):
            save_file(more, folder / f"{name}.inputs")
            jobs.append(
                {
                    "base": str(base),
                    "inputs": str(folder / f"{name}.inputs"),
                    "result": str(folder / f"{name}.result"),
                    "sizes": sizes,
                    "adapters": uses if name == "near" else [],
                }
            )
        file = folder / "jobs.json"
        file.write_text(json.dumps(jobs), encoding="utf-8")
        comfy_host.run("promise_process.py", file)
        self.theirs = load_file(folder / "near.result")
        self.far_theirs = load_file(folder / "far.result")[f"without/{IMAGE}"]
        with safe_open(folder / "near.result", "pt") as result:
            self.facts = json.loads(result.metadata()["facts"])


@pytest.fixture(scope="module")
def sides(comfy_host, tmp_path_factory):
    return Sides(tmp_path_factory.mktemp("layered"), comfy_host)


def test_the_base_is_the_hosts(sides):
    """Its detection finds the embedding of transparency, and the place -1 of the control image."""
    ours, theirs = sides.ours["without"], sides.theirs[f"without/{IMAGE}"]
    assert ours.shape == (1, 16, 3, 16, 16)
    assert relative(theirs, ours) <= 1e-5
    # The negative controls: other frames, and no control image.
    assert relative(theirs.flip(2), ours) > 1e-2
    assert relative(sides.theirs["without/plain"], ours) > 1e-3


def test_text_lies_further_away_only_where_an_image_has_more_layers_than_places(sides):
    """A limit that both have on purpose: an image of 640 pixels has room for 20 frames."""
    assert relative(sides.far_theirs, sides.far) > 1e-5


@pytest.mark.parametrize(
    ("kind", "layout"),
    [(k, each) for k in KINDS for each in (LAYOUTS if "dora" not in k else LAYOUTS[:1])],
)
def test_the_change_of_an_adapter_is_the_hosts(sides, kind, layout):
    use = f"{kind} {layout}"
    assert sides.facts[use]["messages"] == []
    ours, base = sides.ours[kind], sides.ours["without"]
    theirs, host_base = sides.theirs[f"{use}/{IMAGE}"], sides.theirs[f"without/{IMAGE}"]
    change = ours - base
    assert relative(theirs, ours) <= 2e-5
    assert relative(theirs - host_base, change) <= 1e-3
    assert float(change.norm() / base.norm()) >= 0.1
