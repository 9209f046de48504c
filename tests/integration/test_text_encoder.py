"""CLIP-L trained with the denoiser: against Diffusers and PEFT, resumed, in files, in images."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from PIL import Image
from runs import merge, tensors

from tests.fixtures.flux_base import make_clip, make_flux_base, make_flux_pipeline
from tests.integration.test_flux import make_images
from trainer_core.adapter_files.names.text_encoder_names import TARGETS, is_text_layer
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, RunConfig
from trainer_core.errors import AdapterFileError, ConfigError
from trainer_core.families.diffusers_parts import pack
from trainer_core.families.registry import get_family
from trainer_core.families.trainable_text import join_text, with_text, with_tokens
from trainer_core.inference.pipeline import sample_images
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest

FAMILY = get_family("flux")
CAPTIONS = ["a red circle", "two blue squares on a green background"]
RANK = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_flux_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "images", False)


def config(base, data, output, /, **overrides):
    values = {
        "family": "flux",
        "base": {"path": str(base)},
        "dataset": {"path": str(data), "resolution": 64, "caption_dropout": 0.2},
        "adapter": {"kind": "lora", "rank": 2, "dropout": 0.1, "targets": "attention"},
        "training": {
            "steps": 4,
            "batch_size": 2,
            "precision": "fp32",
            "checkpoint_every": 0,
            "optimizer": {"learning_rate": 1e-2},
            "text_encoder": {"train": True, "rank": RANK},
        },
        "memory": {"device": "cpu", "threads": 1},
        "output": {"dir": str(output)},
    }
    return RunConfig.model_validate(merge(values, overrides))


def seeded_factors(names):
    """Factors by the layer's name, far enough from the start to change something."""
    found = {}
    for place, (name, inputs, outputs) in enumerate(sorted(names)):
        generator = torch.Generator().manual_seed(place)
        down = torch.randn(RANK, inputs, generator=generator) / inputs**0.5
        found[name] = down, torch.randn(outputs, RANK, generator=generator) / RANK**0.5
    return found


def as_diffusers(name):
    """A layer of our CLIP-L by its name in transformers' model."""
    clip, _ = make_clip()
    path = name.removeprefix("text_encoder.")
    return path if hasattr(clip, "text_model") else path.removeprefix("text_model.")


def test_loss_and_gradients_are_those_of_diffusers_and_peft(base):
    """The pooled text of PEFT's CLIP goes into Diffusers' own transformer, and the loss back."""
    location = locate_base(BaseSection(path=str(base), text_length=64), FAMILY, False)
    located = with_tokens(location)
    transformer = FAMILY.load_transformer(located, torch.float32, "cpu")
    encoders = FAMILY.load_encoders(located, torch.float32, "cpu")
    join_text(transformer, make_clip()[0])
    settings = with_text(RunConfig.model_validate({**_text(), "adapter": {"kind": "lora"}}))
    adapter = attach(transformer, settings.adapter, [TARGETS], presets=FAMILY.layers.presets)
    layers = adapter.layers
    names = [(n, layer.in_features, layer.out_features) for n, layer in layers.items()]
    factors = seeded_factors(names)
    with torch.no_grad():
        for name, layer in layers.items():
            for factor, tensor in zip(("lora_down", "lora_up"), factors[name], strict=True):
                layer.factors()[factor].copy_(tensor)
    generator = torch.Generator().manual_seed(9)
    noisy, target = torch.randn(2, 2, 4, 8, 8, generator=generator)
    sigma = torch.tensor([0.3, 0.8])
    texts = [encoders.encode_text(caption) for caption in CAPTIONS]
    assert all("pooled_text" not in text for text in texts)
    ours = FAMILY.prediction.predict(transformer, noisy, sigma, texts, [], 3.5)
    loss = (ours - target).square().mean(dim=(1, 2, 3)).sum()
    loss.backward()

    pipeline = make_flux_pipeline()
    peft = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=[as_diffusers(n) for n in layers])
    clip = inject_adapter_in_model(peft, pipeline.text_encoder)
    modules = dict(clip.named_modules())
    with torch.no_grad():
        for name, (down, up) in factors.items():
            module = modules[as_diffusers(name)]
            module.lora_A["default"].weight.copy_(down)
            module.lora_B["default"].weight.copy_(up)
    ids = pipeline.tokenizer(CAPTIONS, padding="max_length", max_length=77, return_tensors="pt")
    pooled = clip(ids.input_ids).pooler_output
    with torch.no_grad():
        text = pipeline._get_t5_prompt_embeds(CAPTIONS, max_sequence_length=64)
    given = pipeline._prepare_latent_image_ids(2, 4, 4, "cpu", torch.float32)
    out = pipeline.transformer(
        hidden_states=pack(noisy),
        timestep=sigma,
        guidance=torch.full((2,), 3.5),
        pooled_projections=pooled,
        encoder_hidden_states=text,
        txt_ids=torch.zeros(64, 3),
        img_ids=given,
        return_dict=False,
    )[0]
    expected = (out - pack(target)).square().mean(dim=(1, 2)).sum()
    expected.backward()
    assert abs(loss.item() - expected.item()) <= 1e-6 * expected.item()
    for name, layer in layers.items():
        module = modules[as_diffusers(name)]
        for factor, theirs in (("lora_down", module.lora_A), ("lora_up", module.lora_B)):
            grad, other = layer.factors()[factor].grad, theirs["default"].weight.grad
            assert float(other.norm()) > 1e-5, name
            assert float((grad - other).norm() / other.norm()) <= 1e-6, (name, factor)


def _text(**more):
    return {"training": {"text_encoder": {"train": True, "rank": RANK, **more}}}


def test_the_text_encoder_has_a_rate_of_its_own_which_is_a_tenth_unless_it_is_set():
    plain = RunConfig.model_validate({})
    assert with_text(plain) is plain
    found = with_text(RunConfig.model_validate(_text())).training.optimizer.rate_pattern
    assert found == {TARGETS: 0.1}
    given = _text(learning_rate=5e-5)
    given["training"]["optimizer"] = {"learning_rate": 1e-4, "rate_pattern": {".*": 2.0}}
    found = with_text(RunConfig.model_validate(given)).training.optimizer.rate_pattern
    assert list(found.items()) == [(TARGETS, 0.5), (".*", 2.0)], "its own comes first"
    with_alpha = {**_text(), "adapter": {"rank": 12, "alpha": 6.0}}
    adapter = with_text(RunConfig.model_validate(with_alpha)).adapter
    assert adapter.alpha_pattern == {TARGETS: RANK / 2}


@pytest.mark.exhaustive
def test_files_previews_and_samples_have_the_trained_text_encoder(base, data, tmp_path):
    from diffusers import FluxPipeline

    shown = {"every": 6, "prompts": ["an image"], "width": 64, "height": 64, "steps": 2}
    settings = {
        "cache": {"dir": str(tmp_path / "cache")},
        "preview": shown,
        "training": {"steps": 6, "text_encoder": {"learning_rate": 1e-2}},
        "output": {"layouts": ["comfyui", "diffusers", "kohya"]},
    }
    run = train(config(base, data, tmp_path / "run", **settings))
    states = [read_adapter(path, FAMILY.layers.key_map) for path in run.adapters]
    ours = states[0].layers
    assert sum(map(is_text_layer, ours)) == 2 * 6
    for state in states[1:]:
        for name in filter(is_text_layer, ours):
            one, other = (each.layers[name] for each in (states[0], state))
            for each in ("lora_down", "lora_up"):
                torch.testing.assert_close(one.tensors[each], other.tensors[each])
    # A run file that says nothing of the text encoder: the adapter's file does.
    plain = merge(settings, {"training": {"text_encoder": {"train": False}}})
    plain["training"]["text_encoder"] = {"train": False, "rank": 8}
    sampled = config(base, data, tmp_path / "s", **plain)
    drawn = [
        np.asarray(Image.open(path)).astype(int)
        for path in (
            sample_images(sampled, run.adapters[0], tmp_path / "one")[0],
            sample_images(sampled, run.adapters[1], tmp_path / "two")[0],
            sample_images(sampled, None, tmp_path / "none")[0],
        )
    ]
    preview = np.asarray(Image.open(run.pictures[-1])).astype(int)
    assert max(np.abs(each - preview).max() for each in drawn[:2]) <= 1
    assert np.abs(drawn[2] - preview).max() > 5
    pipeline = FluxPipeline.from_pretrained(base)
    ids = pipeline.tokenizer(CAPTIONS, padding="max_length", max_length=77, return_tensors="pt")
    with torch.no_grad():
        before = pipeline.text_encoder(ids.input_ids).pooler_output
        pipeline.load_lora_weights(run.adapters[1])
        theirs = pipeline.text_encoder(ids.input_ids).pooler_output
    assert float((theirs - before).norm() / before.norm()) > 1e-3
    assert float((theirs - _pooled(base, states[0], ids.input_ids)).norm() / theirs.norm()) < 1e-5
    begun = merge(plain, {"adapter": {"start_from": str(run.adapters[0])}})
    with pytest.raises(AdapterFileError, match="12 layers of a text encoder"):
        train(config(base, data, tmp_path / "t", **begun))


def _pooled(base, state, tokens):
    """What our CLIP-L makes of tokens with an adapter's layers of it."""
    from dataclasses import replace

    from trainer_core.adapters.attach_state import attach_state

    location = with_tokens(locate_base(BaseSection(path=str(base)), FAMILY, False))
    transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
    join_text(transformer, make_clip()[0])
    layers = {name: layer for name, layer in state.layers.items() if is_text_layer(name)}
    attach_state(transformer, replace(state, layers=layers)).eval()
    return transformer.text_encoder(tokens)


@pytest.mark.exhaustive
def test_a_finished_cache_says_for_which_run_it_was_encoded(base, data, tmp_path):
    cache = {"cache": {"dir": str(tmp_path / "cache")}}
    asked, off = config(base, data, tmp_path / "run", **cache), {"train": False, "rank": 8}
    observer, here = SilentObserver(), SingleProcess(torch.device("cpu"))
    listed = save_manifest(asked, prepare(asked, observer, here))
    finished = {"cache": {"manifest": str(listed)}, "training": {"steps": 1}}
    run = train(config(base, data, tmp_path / "listed", **finished))
    assert any(name.startswith("lora_te1_") for name in tensors(run.adapters[0]))
    other = merge(finished, {"training": {"text_encoder": off}})
    with pytest.raises(ConfigError, match="train is false, and the finished cache was encoded"):
        train(config(base, data, tmp_path / "other", **other))
    plain = config(base, data, tmp_path / "run", **merge(cache, {"training": other["training"]}))
    unlike = save_manifest(plain, prepare(plain, observer, here))
    with pytest.raises(ConfigError, match="train is true, and the finished cache was encoded"):
        train(config(base, data, tmp_path / "third", cache={"manifest": str(unlike)}))


def test_bases_without_clip_l_are_refused():
    family = get_family("qwen_image")
    located = locate_base(BaseSection(), family, False)
    with pytest.raises(ConfigError, match=r"training\.text_encoder\.train is true, and family"):
        family.joined(located, RunConfig.model_validate(_text()))
