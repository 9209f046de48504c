"""Training runs of Qwen-Image 2.1 on the command line, and Diffusers with the files they give."""

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.fixtures.families.qwen_image_21 import clear_image
from tests.fixtures.qwen21_base import make_qwen21_base, open_qwen21_pipeline
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapters.attach_state import attach_state
from trainer_core.families.registry import get_family
from trainer_core.families.run_files import load_config
from trainer_core.training.run import train

FAMILY = get_family("qwen_image_21")
KINDS = ("lora", "loha", "lokr", "oft")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base, images of which one is transparent, and pairs."""
    root = tmp_path_factory.mktemp("qwen21")
    make_qwen21_base(root / "base")
    for folder in ("images", "pairs/training_images", "pairs/control_images"):
        (root / folder).mkdir(parents=True)
        for index, text in enumerate(("a long caption of an image", "short", "another one")):
            image = clear_image(64, 64, index)
            (image if index else image.convert("RGB")).save(root / folder / f"{index}.png")
            if "control" not in folder:
                (root / folder / f"{index}.txt").write_text(text)
    return root


def run(place, name, dataset="images", **given):
    values = {
        "family": "qwen_image_21",
        "base.path": str(place / "base"),
        "dataset.path": str(place / dataset),
        "dataset.resolution": 64,
        "dataset.control_area": 64 * 64,
        "adapter.rank": 2,
        "training.steps": 2,
        "training.batch_size": 3,
        "training.precision": "fp32",
        "memory.device": "cpu",
        "output.name": name,
        "output.dir": str(place / "output" / name),
        "output.layouts": "[comfyui]",
        "cache.dir": str(place / "cache"),
        **given,
    }
    return train(load_config({}, [f"{key}={value}" for key, value in values.items()]))


@pytest.mark.parametrize(
    "kind", [kind if kind == "lora" else pytest.param(kind, marks=pytest.mark.exhaustive)
             for kind in KINDS]
)  # fmt: skip
def test_each_kind_trains_and_its_previews_are_transparent(place, kind):
    result = run(
        place, kind,
        **{"adapter.kind": kind, "preview.every": 2, "preview.prompts": "[a red circle]",
           "preview.width": 64, "preview.height": 64, "preview.steps": 1, "preview.guidance": 1.0},
    )  # fmt: skip
    assert result.status == "done"
    assert all(torch.tensor(result.losses).isfinite())
    with Image.open(result.pictures[-1]) as image:
        assert (image.mode, image.size) == ("RGBA", (64, 64))
        low, high = image.getchannel("A").getextrema()
        assert low < high
    state = read_adapter(result.adapters[0], FAMILY.layers.key_map)
    assert len(state.layers) == 2 * 7


def test_an_edit_trains_with_references(place):
    result = run(place, "edit", "pairs", **{"adapter.targets": "all_linear"})
    assert result.status == "done"
    assert len(read_adapter(result.adapters[0], FAMILY.layers.key_map).layers) == 2 * 7 + 8


def test_diffusers_generates_with_the_file_what_the_trainer_does(place):
    result = run(
        place,
        "shown",
        **{
            "adapter.kind": "lora",
            "output.layouts": "[diffusers]",
            "training.optimizer.learning_rate": 0.05,
        },
    )
    (file,) = result.adapters
    assert all(name.startswith("transformer.") for name in load_file(file))
    pipeline = open_qwen21_pipeline(place / "base")
    given = {
        "prompt": "a red circle",
        "width": 64,
        "height": 64,
        "num_inference_steps": 2,
        "output_type": "pt",
        "latents": torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0)),
    }
    before = pipeline(**given).images
    pipeline.load_lora_weights(str(file))
    found = pipeline(**given).images
    pipeline.unload_lora_weights()
    attach_state(pipeline.transformer, read_adapter(file, FAMILY.layers.key_map)).eval()
    expected = pipeline(**given).images
    assert (found - expected).abs().max() <= 1e-4
    assert (found - before).abs().max() > 1e-2
