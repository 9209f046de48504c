"""Runs on a base with adapters of its own: trained with, left out of samples, never saved."""

import contextlib
import json

import pytest
import torch
from PIL import Image
from runs import CancelAfter, assert_same_files, metrics, noisy_images, preview_image, run_config
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.fixtures.combinations import some
from tests.fixtures.flux_base import SCHEDULER, make_flux_base, make_flux_vae
from tests.fixtures.native_files import flux_to_native, make_native_flux
from trainer_core.adapter_files.factors.effective_delta import delta_norm
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.bases.base_weights import open_base
from trainer_core.bases.write_merged import merge_into_base
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.inference.pipeline import sample_prompts
from trainer_core.training import train
from trainer_core.training.observer import PreviewDone, RunStarted

FIRST = {"steps": 3, "optimizer": {"learning_rate": 2e-2}}
SHORT = {"steps": 3, "optimizer": {"learning_rate": 5e-3}}
PREVIEW = {
    "every": 3,
    "prompts": ["a red circle on a blue background"],
    "width": 64,
    "height": 64,
    "steps": 3,
}


def beside(*files, when="training", strength=1.0):
    adapters = [{"path": str(file), "when": when, "strength": strength} for file in files]
    return {"base": {"adapters": adapters}}


@pytest.fixture(scope="module")
def first(tmp_path_factory, cache):
    """An adapter that changes what the base generates."""
    folder = tmp_path_factory.mktemp("first")
    return train(run_config(folder, cache, training=FIRST, preview=PREVIEW))


@pytest.fixture(scope="module")
def lora(tmp_path_factory, cache):
    """A second one, with DoRA."""
    adapter = {"kind": "lora", "rank": 4, "dora": True, "dora_axis": "output", "factor": -1}
    folder = tmp_path_factory.mktemp("lora")
    output = {"layouts": ["diffusers"]}
    return train(
        run_config(folder, cache, training=FIRST, adapter=adapter, output=output)
    ).adapters[0]


def pixels(config, file):
    (found,) = sample_prompts(config, file)
    return found


FORMS = {
    "dense": {},
    "swapped": {"blocks_to_swap": 2, "gradient_checkpointing": True},
    "int8": {"base_format": "int8"},
    "nf4 swapped": {
        "base_format": "nf4",
        "blocks_to_swap": 2,
        "gradient_checkpointing": True,
        "swap_slots": 1,
    },
}


@pytest.mark.parametrize("form", some(FORMS, "dense"))
def test_previews_are_made_without_what_only_trains(tmp_path, cache, first, lora, form):
    given = {"training": SHORT, "preview": PREVIEW, "memory": FORMS[form]}
    config = run_config(tmp_path / "a", cache, **given, **beside(first.adapters[0], lora))
    found = train(config)
    plain = run_config(tmp_path / "b", cache, **given)
    assert torch.equal(pixels(config, None), pixels(plain, None))
    base, trained = preview_image(found.folder, 0), preview_image(found.folder, 3)
    other = train(plain)
    assert base == preview_image(other.folder, 0)
    # What was trained is something else than without, and is shown on the base alone.
    assert metrics(found.folder)[0]["loss"] != metrics(other.folder)[0]["loss"]
    (path,) = (found.folder / "samples").glob("*3/0.png")
    shown = torch.tensor(list(Image.open(path).tobytes())).view(64, 64, 3).permute(2, 0, 1)
    again = (pixels(plain, found.adapters[0]).clamp(-1, 1) + 1) * 127.5
    assert (again - shown).abs().max() <= 1.0
    assert trained != base


@pytest.mark.parametrize("form", some(["dense", "swapped"], "dense"))
def test_samples_with_what_stays_are_those_of_the_merged_base(tmp_path, cache, first, lora, form):
    files = first.adapters[0], lora
    memory = FORMS[form]
    config = run_config(
        tmp_path, cache, preview=PREVIEW, memory=memory, **beside(*files, when="always")
    )
    family = get_family("qwen_image")
    states = [(read_adapter(file, family.layers.key_map), 1.0) for file in files]
    merged = tmp_path / "merged"
    merge_into_base(open_base("embedded"), states, merged, "fp32")
    other = run_config(tmp_path, cache, preview=PREVIEW, base={"path": str(merged)})
    expected = pixels(other, None)
    torch.testing.assert_close(pixels(config, None), expected, rtol=0, atol=2e-5)
    assert (
        pixels(run_config(tmp_path, cache, preview=PREVIEW), None) - expected
    ).abs().max() > 0.01


class StopInPreview(CancelAfter):
    """Says stop, or fails, while the second preview is made."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def notify(self, event):
        super().notify(event)
        if isinstance(event, PreviewDone) and event.step:
            if self.fails:
                raise RuntimeError("a cable that came loose")
            self.step = 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_preview_that_does_not_end_takes_nothing_from_the_run(tmp_path, cache, first, fails):
    preview = {**PREVIEW, "every": 2, "prompts": PREVIEW["prompts"] * 2}
    given = {"training": SHORT, "preview": preview, **beside(first.adapters[0])}
    whole = train(run_config(tmp_path / "a", cache, **given))
    config = run_config(tmp_path / "b", cache, **given)
    with contextlib.suppress(RuntimeError):
        assert train(config, StopInPreview(fails)).step == 2
    resumed = train(config.model_copy(update={"resume": "latest"}))
    assert resumed.folder.name == "v0"
    assert_same_files(resumed.adapters, whole.adapters)


@pytest.mark.parametrize("level", ["shareable", "full"])
def test_the_file_says_what_was_there_and_holds_nothing_of_it(tmp_path, cache, first, level):
    observer = CancelAfter()
    file = first.adapters[0].rename(first.adapters[0].with_name("private.safetensors"))
    given = {"training": {**SHORT, "steps": 1}, "output": {"metadata": level}}
    still = {"steps": 1, "optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0}}
    try:
        config = run_config(tmp_path, cache, **{**given, "training": still}, **beside(file))
        found = train(config, observer)
    finally:
        file.rename(first.adapters[0])
    with safe_open(str(found.adapters[0]), framework="pt") as opened:
        header = opened.metadata()
    (mark,) = json.loads(header["adapter_trainer"])["base_adapters"]
    assert (mark["strength"], mark["when"], len(mark["sha256"])) == (1.0, "training", 64)
    assert ("private" in json.dumps(header)) is (level == "full")
    # A rate that moves nothing leaves nothing: no delta of the base's adapter is in the file.
    family = get_family("qwen_image")
    state = read_adapter(found.adapters[0], family.layers.key_map)
    assert max(delta_norm(state.kind, layer) for layer in state.layers.values()) < 1e-20
    (started,) = [event for event in observer.events if isinstance(event, RunStarted)]
    assert "private.safetensors (1, training)" in started.summary.base


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", some(["file", "folder"], "file"))
def test_schnell_trains_with_a_training_adapter(tmp_path, cache, form):
    """From both forms: four steps without guidance, and no guidance for the transformer."""
    folder = make_schnell(tmp_path / "schnell")
    base = {"path": str(folder)}
    if form == "file":
        tensors = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
        file = tmp_path / "flux1.safetensors"
        save_file(flux_to_native(tensors), file)
        base = {"path": str(file), "encoders": str(folder)}
    given = {
        "family": "flux",
        "training": {**SHORT, "steps": 2},
        "adapter": {"kind": "lora", "rank": 2, "factor": -1, "targets": "attention"},
        "preview": {**PREVIEW, "every": 2, "width": 32, "height": 32, "steps": 4},
        "dataset": {"resolution": 32, "path": str(noisy_images(tmp_path / "images", 2, 32))},
    }
    with pytest.raises(BaseModelError, match="is distilled, which training would undo"):
        train(run_config(tmp_path / "a", cache, **given, base=base))
    observer = CancelAfter()
    first = train(
        run_config(tmp_path / "a", cache, **given, base={**base, "distilled": "train"}), observer
    )
    assert any("or without guidance, blur" in each for each in observer.said())
    observer = CancelAfter()
    adapters = [{"path": str(first.adapters[0]), "when": "training"}]
    found = train(
        run_config(tmp_path / "b", cache, **given, base={**base, "adapters": adapters}), observer
    )
    assert len([each for each in observer.said() if "training adapter" in each]) == 1
    assert preview_image(found.folder, 0) == preview_image(first.folder, 0)
    assert metrics(found.folder)[0]["loss"] != metrics(first.folder)[0]["loss"]


def make_schnell(folder):
    """Of the sizes that a single file has: heads of 128, latents of 16 channels."""
    make_flux_base(folder, guidance=False)
    settings = folder / "scheduler" / "scheduler_config.json"
    settings.write_text(json.dumps(SCHEDULER | {"use_dynamic_shifting": False, "shift": 1.0}))
    model = make_native_flux(False, layers=1, single_layers=1, joint=32)
    model.save_pretrained(folder / "transformer")
    make_flux_vae(16).save_pretrained(folder / "vae")
    return folder
