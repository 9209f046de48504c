"""FLUX.1 Fill, whose control images are transparent, through the nodes; others: `test_workflows`.

Everything is ComfyUI's own but the size of the models. The text encoders come from stand-ins of
ComfyUI's loaders (`stand_in_encoders`).
"""

from __future__ import annotations

import json
import shutil

import numpy
import pytest
import torch
from comfyui.conftest import (
    comfy_programs,
    install_stand_in_encoders,
    make_data,
    write_images,
)
from comfyui.graphs import record, run_folder
from comfyui.readings import relative
from comfyui.server import ROOT, comfy_server
from fixtures import graph_models
from fixtures.flux_base import make_fill_transformer
from fixtures.native_files import flux_to_native
from fixtures.stand_ins import write_text_encoders
from PIL import Image
from safetensors.torch import load_file, save_file

from trainer_core.families.flux.fill import MASK, masked_latents
from trainer_core.families.flux_vae import shifted_vae
from trainer_core.training.cache_manifest import read_manifest

# A server of its own.
pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.exhaustive]

SIZE, STEPS = 64, 2
FILL = "flux1-fill-dev.safetensors"
T5 = "t5xxl_fp8_e4m3fn_scaled.safetensors"
CLIP, VAE, MODEL, BASE, DATASET, CACHE = "1", "2", "3", "4", "5", "7"
ADAPTER, SETTINGS, TRAIN, SAVE = "8", "9", "10", "11"


def half_transparent(number):
    """An image of the dataset that is to be filled at the left, and by a third in the middle."""
    generator = numpy.random.default_rng(number)
    coarse = generator.integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
    image = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    alpha = numpy.full((SIZE, SIZE), 255, numpy.uint8)
    alpha[:, : SIZE // 4], alpha[:, SIZE // 4 : SIZE // 2] = 0, 170
    image.putalpha(Image.fromarray(alpha))
    return image


def write_models(models, vae):
    for folder in ("diffusion_models", "text_encoders", "vae"):
        (models / folder).mkdir(parents=True, exist_ok=True)
    write_text_encoders(models / "text_encoders")
    save_file(vae.state_dict(), models / "vae" / "ae.safetensors")
    sizes = {"attention_head_dim": 128, "num_attention_heads": 1, "axes_dims_rope": (16, 56, 56)}
    joint = graph_models.T5_CONFIG["d_model"]
    fill = make_fill_transformer(64, joint_attention_dim=joint, **sizes)
    native = {key: t.contiguous() for key, t in flux_to_native(fill.state_dict()).items()}
    save_file(native, models / "diffusion_models" / FILL)


@pytest.fixture(scope="module")
def vae():
    return graph_models.make_full_flux_vae()


@pytest.fixture(scope="module")
def server(tmp_path_factory, vae):
    folder, python = comfy_programs()
    data = make_data(tmp_path_factory.mktemp("families"))
    pairs = data / "datasets" / "filled"
    write_images(pairs / "training_images", captions=("a filled square",) * 2)
    (pairs / "control_images").mkdir()
    for number in range(2):
        half_transparent(number).save(pairs / "control_images" / f"{number}.png")
    write_models(data / "models", vae)
    install_stand_in_encoders(data)
    with comfy_server(folder, python, data) as server:
        yield server
    shutil.rmtree(data / "models")  # they are large


def graph():
    """The shipped graph of a full-size base, without previews and without what generates."""
    shipped = ROOT / "tests" / "workflows" / "63_advanced_flux_dev.json"
    found = json.loads(shipped.read_text(encoding="utf-8"))
    kept = (CLIP, VAE, MODEL, BASE, DATASET, CACHE, ADAPTER, SETTINGS, TRAIN, SAVE)
    nodes = {node: found[node] for node in kept}
    given = {"clip_name1": "clip_l.safetensors", "clip_name2": T5, "type": "flux"}
    given |= {"device": "default"}
    nodes[CLIP] = {"class_type": "StandInDualCLIPLoader", "inputs": given}
    changes = {
        MODEL: {"unet_name": FILL},
        BASE: {"source": f"diffusion_models/{FILL}", "precision": "fp32"},
        DATASET: {"folder": "datasets/filled", "resolution": SIZE},
        SETTINGS: {"preview_every": 0, "checkpoint_every": 0, "warmup_steps": 0},
        ADAPTER: {"rank": 2, "targets": "all_linear"},
        TRAIN: {"name": "fill", "steps": STEPS, "learning_rate": 0.05},
        SAVE: {"name": "fill"},
    }
    for node, inputs in changes.items():
        nodes[node]["inputs"] |= inputs
    del nodes[CACHE]["inputs"]["previews"], nodes[TRAIN]["inputs"]["vae"]
    return nodes


def cached(server):
    """The samples that the only cache lists."""
    (manifest,) = (server.data / "output" / "adapter_trainer" / "cache").glob("*.cache.json")
    dataset = read_manifest(manifest).dataset
    return [dataset.load(index) for index in range(len(dataset))]


def test_fill_reads_transparency_through_the_graphs_vae(server, vae):
    server.run(graph())
    assert record(run_folder(server, "fill"))["status"] == "done"
    tensors = load_file(server.data / "models" / "loras" / "fill.safetensors")
    assert len(tensors) > 20
    assert all(bool(tensor.isfinite().all() and tensor.any()) for tensor in tensors.values())
    assert tensors["diffusion_model.img_in.lora_down.weight"].shape == (2, 2 * 64 + 256)
    reference, samples = shifted_vae(vae), cached(server)
    assert len(samples) == 2
    for sample in samples:
        pixels = numpy.asarray(half_transparent(int(sample.name[-5])), dtype=numpy.float32)
        pixels = torch.from_numpy(pixels / 127.5 - 1).movedim(-1, 0)[None]
        expected = masked_latents(pixels, reference.encode)[0]
        (control,) = sample.controls
        assert control.shape == expected.shape == (16 + MASK, SIZE // 8, SIZE // 8)
        torch.testing.assert_close(control[16:], expected[16:], rtol=0, atol=1e-6)
        assert {0.0, 1.0} < set(control[16:].unique().tolist())
        assert relative(control[:16], expected[:16]) < 1e-4
        opaque = reference.encode(pixels[:, :3])[0]
        assert relative(control[:16], opaque) > 1e-2
