"""FLUX.2 on a graph: what klein's CLIP and VAE give is what the headless encoders give."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fixtures.flux2_base import flux2_to_native, make_flux2_transformer
from fixtures.small_chat_models import small_qwen3
from fixtures.stand_ins import TEXT, klein_vae
from safetensors.torch import load_file, save_file

from trainer_core.families.chat_text import ChatEncoders
from trainer_core.families.flux2.encode import QWEN, flux2_vae

# `make test` runs the encoders of other families: test_graph_encoders, test_chat_encoders.
pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.exhaustive]

CAPTIONS = {"short": "a red circle", "long": "two blue squares " * 300}


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    """What ComfyUI's CLIP and VAE gave through the pack, and the headless encoders."""
    from diffusers import AutoencoderKLFlux2
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("flux2")
    # ComfyUI takes the published base of the rotary positions for granted.
    text = small_qwen3(**TEXT, head_dim=128, rope_theta=1e6)
    state = {f"model.{name}": tensor for name, tensor in text.state_dict().items()}
    save_file(state, folder / "text.safetensors")
    (folder / "sizes.json").write_text(json.dumps(TEXT))
    weights = {name: tensor.float() for name, tensor in klein_vae().items()}
    save_file(weights, folder / "vae.safetensors")
    for name, guidance in (("klein-base", False), ("dev", True)):
        made = make_flux2_transformer(guidance, joint=3 * TEXT["hidden_size"]).state_dict()
        save_file(flux2_to_native(made), folder / f"{name}.safetensors")
    for name, caption in CAPTIONS.items():
        (folder / f"{name}.txt").write_text(caption)
    pixels = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    save_file({"pixels": pixels}, folder / "inputs.safetensors")
    told = comfy_host.results("flux2_encoders_process.py", folder)
    # It is of full size, as ComfyUI builds no other: made without values that nobody uses.
    with torch.device("meta"):
        model = AutoencoderKLFlux2().eval()
    model.load_state_dict(weights, assign=True)
    words = AutoTokenizer.from_pretrained(
        Path(comfy_host.root) / "comfy" / "text_encoders" / "qwen25_tokenizer"
    )
    vae = flux2_vae(model)
    own = ChatEncoders(QWEN, words, text, vae, 512, (0, 0), "generate")
    return SimpleNamespace(
        own=own, told=told, theirs=load_file(folder / "out.safetensors"), pixels=pixels
    )


@pytest.mark.parametrize("name", CAPTIONS)
def test_captions_are_encoded_as_headless(found, name):
    theirs = found.theirs[name]
    own = found.own.encode_text(CAPTIONS[name])["text_embeddings"]
    assert theirs.shape == own.shape == (512, 3 * TEXT["hidden_size"])
    torch.testing.assert_close(theirs, own, rtol=0, atol=1e-4)
    assert float((theirs - own.roll(1, 0)).abs().max()) > 1e-2


def test_images_are_encoded_and_decoded_as_headless(found):
    own = found.own.encode_image(found.pixels)
    assert own.shape == (1, 128, 3, 4)
    torch.testing.assert_close(found.theirs["latents"], own, rtol=0, atol=1e-4)
    decoded = found.own.vae.decode(own)
    torch.testing.assert_close(found.theirs["pixels"], decoded, rtol=0, atol=1e-2)


def test_another_bases_clip_is_refused_by_name(found):
    for name, wanted in (("dev", "mistral_3_small_flux2"), ("z_image", "qwen_3_4b")):
        _, expected, remedy = found.told[name]
        assert "FLUX.2" in expected
        assert wanted in remedy
    assert "another prompt template" in found.told["z_image"][0]
    assert "multiples of 16" in found.told["odd"][1]
