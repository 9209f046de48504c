"""FLUX.1 Fill against ComfyUI, given image and mask as its node for inpainting gives them."""

import json

import pytest
import torch
from comfyui.readings import relative
from fixtures.flux_base import POOLED, WIDTH, make_fill_transformer
from fixtures.native_files import flux_to_native
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.flux.fill import MASK, masked_latents
from trainer_core.families.registry import get_family

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

FAMILY = get_family("flux")
HIGH, WIDE = 12, 8
SCALE, SHIFT = 0.3611, 0.1159  # of FLUX.1's latents, from the published vae/config.json
SIZES = {"attention_head_dim": 128, "num_attention_heads": 1, "axes_dims_rope": (16, 56, 56)}


@pytest.fixture(scope="module")
def compared(comfy_host, tmp_path_factory):
    """Our velocities and ComfyUI's, without and with an adapter."""
    folder, generator = tmp_path_factory.mktemp("fill"), torch.Generator().manual_seed(3)
    transformer = make_fill_transformer(64, **SIZES)
    native = {n: t.contiguous() for n, t in flux_to_native(transformer.state_dict()).items()}
    save_file(native, folder / "base.safetensors")
    noisy, clean = torch.randn(2, 1, 16, HIGH, WIDE, generator=generator)
    # Not binarised: what is half transparent stays so.
    alpha = torch.rand(1, 1, 8 * HIGH, 8 * WIDE, generator=generator) * 2 - 1
    pixels = torch.cat([torch.zeros(1, 3, 8 * HIGH, 8 * WIDE), alpha], dim=1)
    control = masked_latents(pixels, lambda image: clean)
    text = torch.randn(1, 7, WIDTH, generator=generator)
    pooled = torch.randn(1, POOLED, generator=generator)
    sigma = torch.tensor([0.7])
    inputs = {
        "noisy": noisy,
        "sigma": sigma,
        "guidance": torch.tensor(30.0),
        "given/cross_attn": text,
        "given/pooled_output": pooled,
        "given/concat_latent_image": clean / SCALE + SHIFT,
        "given/concat_mask": 0.5 - alpha / 2,
    }
    save_file(inputs, folder / "inputs")

    def ours(control=control):
        given = {"text_embeddings": text[0], "pooled_text": pooled[0]}
        with torch.no_grad():
            return FAMILY.prediction.predict(transformer, noisy, sigma, [given], [control], 30.0)

    found = {
        "without": ours(),
        "another mask": ours(torch.cat([control[:, :-MASK], control[:, -MASK:].flip(1)], dim=1)),
    }
    config = AdapterConfig(kind="lora", rank=4, targets="all_linear")
    adapter = attach(transformer, config, presets=FAMILY.layers.presets).eval()
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    found["adapter"] = ours()
    path = folder / "adapter.safetensors"
    write_adapter(path, adapter.state(), "comfyui", FAMILY.layers.key_map, {}, proof=False)
    job = {
        "base": str(folder / "base.safetensors"),
        "inputs": str(folder / "inputs"),
        "result": str(folder / "result"),
        "sizes": {"detected": {}, "matched": {}},
        "adapters": [("adapter", str(path), False)],
    }
    (folder / "jobs.json").write_text(json.dumps([job]), encoding="utf-8")
    comfy_host.run("promise_process.py", folder / "jobs.json")
    return found, load_file(folder / "result")


def test_the_velocity_is_comfyuis(compared):
    ours, theirs = compared
    assert relative(theirs["without/plain"], ours["without"]) <= 1e-5
    assert relative(ours["another mask"], ours["without"]) > 1e-3


def test_an_adapters_change_is_comfyuis(compared):
    ours, theirs = compared
    change = ours["adapter"] - ours["without"]
    found = theirs["adapter/plain"] - theirs["without/plain"]
    assert relative(found, change) <= 1e-3
    assert change.norm() > 0.1 * ours["without"].norm()
