"""Runs on a base of 3 or 4 bits whose rounding an adapter repairs, which is never saved."""

import json

import pytest
import torch
from fixtures.combinations import some
from PIL import Image
from runs import CancelAfter, assert_resumes, metrics, run_config, tensors
from safetensors import safe_open
from safetensors.torch import save_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import AdapterError
from trainer_core.families.registry import get_family
from trainer_core.inference.pipeline import sample_prompts
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.training import train
from trainer_core.training.memory.velocity_error import cached_velocity_error
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.training.step.processes import SingleProcess

FAMILY = get_family("qwen_image")
PREVIEW = {"prompts": ["a red circle on a blue background"], "width": 64, "height": 64, "steps": 2}
SHORT = {"steps": 3, "gradient_accumulation_steps": 1}


def loaded(base_format):
    location = locate_base(BaseSection(), FAMILY, has_controls=False)
    return FAMILY.load_transformer(location, torch.float32, "cpu", base_format)


def recovery(path, base_format, rank, choose=lambda name: True):
    """The best adapter of a rank for the error of each layer: its first singular vectors."""
    dense, found = loaded("dense"), {}
    for name, layer in loaded(base_format).named_modules():
        if isinstance(layer, QuantizedLinear) and choose(name):
            error = dense.get_submodule(name).weight.double() - layer.dense(torch.float64)
            u, s, v = torch.linalg.svd(error, full_matrices=False)
            factors = {"B": u[:, :rank] * s[:rank], "A": v[:rank]}
            for side, factor in factors.items():
                key = f"diffusion_model.{name}.lora_{side}.weight"
                found[key] = factor.float().contiguous()
    save_file(found, path)
    return path


def on_base(base_format, *files, when="quantized", **more):
    return {
        "memory": {"base_format": base_format},
        "base": {"adapters": [{"path": str(file), "when": when} for file in files]},
        "training": SHORT,
        "preview": PREVIEW,
        **more,
    }


def base_image(folder, cache, **own):
    (image,) = sample_prompts(run_config(folder, cache, **own), None)
    return image


@pytest.mark.exhaustive
def test_a_base_of_three_bits_is_repaired_and_the_file_is_the_adapter_alone(tmp_path, cache):
    file = recovery(tmp_path / "recovery_uint3.safetensors", "uint3", 64)
    plain, repaired = on_base("uint3"), on_base("uint3", file)
    dense = base_image(tmp_path, cache, preview=PREVIEW)
    far = [(base_image(tmp_path, cache, **own) - dense).norm() for own in (plain, repaired)]
    assert far[1] < 0.6 * far[0]

    observer = CancelAfter()
    shown_at = {"preview": {**PREVIEW, "every": 3}}
    result = train(run_config(tmp_path, cache, **{**repaired, **shown_at}), observer)
    (path,) = (result.folder / "samples").glob("*000/0.png")
    shown = torch.tensor(list(Image.open(path).tobytes())).view(64, 64, 3).permute(2, 0, 1)
    first = (base_image(tmp_path, cache, **repaired).clamp(-1, 1) + 1) * 127.5
    assert (first - shown).abs().max() <= 1.0
    assert not [each for each in observer.said() if "stay rounded" in each]
    with safe_open(str(result.adapters[0]), framework="pt") as opened:
        header = json.loads(opened.metadata()["adapter_trainer"])
    assert [each["when"] for each in header["base_adapters"]] == ["quantized"]
    alone = train(run_config(tmp_path / "alone", cache, training=SHORT, preview=PREVIEW))
    assert tensors(result.adapters[0]).keys() == tensors(alone.adapters[0]).keys()
    # On the base as it was, the file does what it does on the repaired one, but for the rest of
    # the rounding.
    (here,) = sample_prompts(run_config(tmp_path, cache, preview=PREVIEW), result.adapters[0])
    (there,) = sample_prompts(run_config(tmp_path, cache, **repaired), result.adapters[0])
    assert (here - there).norm() < 0.6 * far[0]


@pytest.mark.exhaustive
def test_less_is_left_of_the_error_of_the_velocity(tmp_path, cache):
    file = recovery(tmp_path / "recovery.safetensors", "uint3", 64)
    dense, device = run_config(tmp_path, cache), torch.device("cpu")
    prepared = prepare(dense, SilentObserver(), SingleProcess(device))
    encoded = {"cache": {"manifest": str(save_manifest(dense, prepared))}}
    plain, repaired = (
        cached_velocity_error(run_config(tmp_path, cache, **own, **encoded), device)
        for own in (on_base("uint3"), on_base("uint3", file))
    )
    assert repaired < 0.6 * plain


@pytest.mark.parametrize("form", some(["uint3", "uint4"]))
def test_what_repairs_all_trains_as_the_dense_base_does(tmp_path, cache, form):
    """With every singular vector nothing is left of the rounding; blocks are swapped meanwhile."""
    file = recovery(tmp_path / "whole.safetensors", form, 10**6)
    swapped = {"base_format": form, "blocks_to_swap": 2, "gradient_checkpointing": True}
    own = on_base(form, file, memory=swapped)
    _, resumed = assert_resumes(lambda name: run_config(tmp_path / name, cache, **own), 2)
    dense = train(run_config(tmp_path / "dense", cache, training=SHORT, preview=PREVIEW))
    losses = [[row["loss"] for row in metrics(each.folder)] for each in (resumed, dense)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    unlike = train(run_config(tmp_path / "plain", cache, **on_base(form)))
    assert metrics(unlike.folder)[0]["loss"] != pytest.approx(losses[1][0], rel=1e-4)


def test_layers_without_a_part_are_counted_and_a_strange_file_is_refused(tmp_path, cache):
    some = recovery(
        tmp_path / "some.safetensors", "uint4", 2, lambda name: name.endswith("attn.to_q")
    )
    observer = CancelAfter()
    train(run_config(tmp_path, cache, **on_base("uint4", some)), observer)
    assert [each for each in observer.said() if "layers in uint4, such as " in each]
    # This layer stays dense, so that there is nothing to repair.
    sides = {"A": torch.ones(2, 32), "B": torch.ones(128, 2)}
    outside = {f"diffusion_model.img_in.lora_{k}.weight": v for k, v in sides.items()}
    more, file = tmp_path / "more.safetensors", tmp_path / "outside.safetensors"
    save_file({**tensors(some), **outside}, more)
    with_it, without = (
        base_image(tmp_path, cache, **on_base("uint4", each)) for each in (more, some)
    )
    assert torch.equal(with_it, without)
    save_file(outside, file)
    with pytest.raises(AdapterError, match="changes none of the 70 layers in fewer bits"):
        train(run_config(tmp_path, cache, **on_base("uint4", file)))
