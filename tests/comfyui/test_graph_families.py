"""Bases that have text encoders or images of their own, through the nodes to an image.

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
from comfyui.server import ROOT, comfy_server
from fixtures import graph_models
from fixtures.flux_base import make_fill_transformer
from fixtures.native_files import flux_to_native
from fixtures.stand_in_z_image import z_image_base
from fixtures.stand_ins import write_text_encoders
from PIL import Image
from safetensors.torch import load_file, save_file

from trainer_core.families.flux.fill import MASK, masked_latents
from trainer_core.families.flux_vae import shifted_vae
from trainer_core.training.cache_manifest import read_manifest

# A server of its own for two models.
pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.exhaustive]

SIZE, STEPS = 64, 2
FILL, Z_IMAGE = "flux1-fill-dev.safetensors", "z_image_bf16.safetensors"
T5 = "t5xxl_fp8_e4m3fn_scaled.safetensors"
CLIPS = {
    "fill": ("StandInDualCLIPLoader", {"clip_name1": "clip_l.safetensors", "clip_name2": T5}),
    "z_image": ("StandInCLIPLoader", {"clip_name": "qwen_3_4b.safetensors"}),
}
TYPES = {"fill": "flux", "z_image": "lumina2"}
COMPLAINTS = ("lora key not loaded", "ERROR lora", "not in model state_dict")
CLIP, VAE, MODEL, BASE, DATASET, CACHE = "1", "2", "3", "4", "5", "7"
ADAPTER, SETTINGS, TRAIN, SAVE, LORA = "8", "9", "10", "11", "13"
TEXT, NOTHING, EMPTY, SAMPLED, PLAIN, LATENTS, PLAIN_LATENTS = map(str, range(20, 27))


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
    for name, tensors in ((FILL, flux_to_native(fill.state_dict())), (Z_IMAGE, z_image_base())):
        contents = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(contents, models / "diffusion_models" / name)


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


def graph(family, base, folder):
    """The shipped graph of a full-size base, without previews and without what generates."""
    shipped = ROOT / "tests" / "workflows" / "63_advanced_flux_dev.json"
    found = json.loads(shipped.read_text(encoding="utf-8"))
    kept = (CLIP, VAE, MODEL, BASE, DATASET, CACHE, ADAPTER, SETTINGS, TRAIN, SAVE)
    nodes = {node: found[node] for node in kept}
    kind, files = CLIPS[family]
    given = {**files, "type": TYPES[family], "device": "default"}
    nodes[CLIP] = {"class_type": kind, "inputs": given}
    changes = {
        MODEL: {"unet_name": base},
        BASE: {"source": f"diffusion_models/{base}", "precision": "fp32"},
        DATASET: {"folder": f"datasets/{folder}", "resolution": SIZE},
        SETTINGS: {"preview_every": 0, "checkpoint_every": 0, "warmup_steps": 0},
        ADAPTER: {"rank": 2, "targets": "all_linear"},
        TRAIN: {"name": family, "steps": STEPS, "learning_rate": 0.05},
        SAVE: {"name": family},
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


def assert_trained(server, family):
    folder = run_folder(server, family)
    assert record(folder)["status"] == "done"
    tensors = load_file(server.data / "models" / "loras" / f"{family}.safetensors")
    assert len(tensors) > 20
    assert all(bool(tensor.isfinite().all() and tensor.any()) for tensor in tensors.values())
    return tensors


def generating(nodes, family):
    """Add what generates with the adapter and without, from one noise."""
    given = {"model": [MODEL, 0], "lora": [TRAIN, 0], "strength_model": 1.0, "bypass": False}
    nodes[LORA] = {"class_type": "LoraModelLoader", "inputs": given}
    for node, text in ((TEXT, "a red diamond"), (NOTHING, "")):
        inputs = {"clip": [CLIP, 0], "text": text}
        nodes[node] = {"class_type": "CLIPTextEncode", "inputs": inputs}
    inputs = {"width": SIZE, "height": SIZE, "batch_size": 1}
    nodes[EMPTY] = {"class_type": "EmptySD3LatentImage", "inputs": inputs}
    for sampler, latents, model in ((SAMPLED, LATENTS, LORA), (PLAIN, PLAIN_LATENTS, MODEL)):
        inputs = {"seed": 7, "steps": 1, "cfg": 1.0, "denoise": 1.0, "model": [model, 0]}
        inputs |= {"sampler_name": "euler", "scheduler": "simple", "latent_image": [EMPTY, 0]}
        inputs |= {"positive": [TEXT, 0], "negative": [NOTHING, 0]}
        nodes[sampler] = {"class_type": "KSampler", "inputs": inputs}
        name = f"latents/{family}_{'with' if model == LORA else 'without'}"
        inputs = {"samples": [sampler, 0], "filename_prefix": name}
        nodes[latents] = {"class_type": "SaveLatent", "inputs": inputs}
    return nodes


def saved(server, name):
    (path,) = (server.data / "output" / "latents").glob(f"{name}_*.latent")
    return load_file(path)["latent_tensor"]


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_z_image_trains_and_generates_through_the_nodes(server):
    begin = len(server.log.read_bytes())
    server.run(generating(graph("z_image", Z_IMAGE, "four"), "z_image"))
    said = server.log.read_bytes()[begin:].decode(errors="replace")
    assert not [text for text in COMPLAINTS if text in said], said[-3000:]
    assert_trained(server, "z_image")
    with_adapter, without = (saved(server, f"z_image_{each}") for each in ("with", "without"))
    assert with_adapter.isfinite().all()
    assert relative(with_adapter, without) > 0.01


def test_fill_reads_transparency_through_the_graphs_vae(server, vae):
    server.forget()
    server.run(graph("fill", FILL, "filled"))
    tensors = assert_trained(server, "fill")
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
