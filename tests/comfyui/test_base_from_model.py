"""A MODEL of the graph is trained where it lies: what is trained is what ComfyUI samples."""

import numpy as np
import pytest
from comfyui.tiny_models.sizes import TINY

pytestmark = pytest.mark.comfy

QUICK = (
    {"model": "sdxl_v_zsnr", "kind": "lokr", "guidance": 3.0},
    {"model": "flux", "kind": "loha", "guidance": 2.0},
)
"""UNet and transformer, v and flow."""

OF_CONVOLUTIONS = {"adapter": {"targets": "convolutions"}}
"""Of Stable Diffusion 1.5, which predicts eps."""

KINDS = ("lora", "loha", "lokr")
_FALL = 0.995
"""The loss of the last quarter of the steps, over that of the same steps with a frozen adapter."""

_EXACT, _ROUNDED = 1e-5, 2e-4
"""How near KSampler's sample is to a run's own. A schedule with zero terminal SNR begins at sigma
4518, where ComfyUI's sampler subtracts numbers of that size in float32.
"""


def trained(comfy_host, folder, jobs):
    return comfy_host.results("graph_model_process.py", folder, jobs=jobs, inside=True)


@pytest.fixture(scope="module")
def quick(comfy_host, tmp_path_factory):
    jobs = [{**job, "steps": 12} for job in QUICK]
    return trained(comfy_host, tmp_path_factory.mktemp("quick"), jobs)


def check(found, model):
    near = _ROUNDED if "zsnr" in model else _EXACT
    assert "error" not in found, found["error"]
    assert np.isfinite(found["losses"]).all()
    losses, frozen = (found[name][-len(found[name]) // 4 :] for name in ("losses", "frozen"))
    assert np.mean(losses) < _FALL * np.mean(frozen)
    assert found["status"] == "done"
    # ComfyUI loads every tensor, and samples what the run's own previews show.
    assert found["unread"] == []
    assert found["patches"] == found["layers"]
    assert found["change"] > 1e-3
    assert found["base_error"] < near
    assert found["sample_error"] < near
    # The model is as it was: weights, modules, hooks, flags, and what it samples.
    assert found["changed"] == []
    assert found["same_after"]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: f"{job['model']}-{job['kind']}")
def test_a_model_learns_and_is_as_before(quick, job):
    check(quick[f"{job['model']}_{job['kind']}"], job["model"])


CLIPS = {
    model: {"model": model, "kind": kind, "frames": frames, "fps": fps, "steps": 12}
    for model, kind, frames, fps in (
        ("wan21", "lora", 9, 16.0),
        ("ltxv", "lokr", 9, 25.0),
        ("ltxav", "lora", 9, 25.0),
        ("hunyuan_video", "loha", 5, 24.0),
        ("cosmos_predict2", "lora", 5, 16.0),
        ("kandinsky5", "oft", 9, 24.0),
        ("mochi", "lora", 13, 30.0),
    )
}
"""Models of videos, with a length of their grid and their rate."""


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=[] if model == "wan21" else pytest.mark.exhaustive)
        for model in CLIPS
    ],
)
def test_a_model_of_videos_learns_clips_and_is_as_before(comfy_host, tmp_path, model):
    job = CLIPS[model]
    found = trained(comfy_host, tmp_path, [job])[f"{model}_{job['kind']}"]
    check(found, model)
    if model == "ltxav":  # attentions to the clip and to the text and the MLP; nothing of sound
        assert found["layers"] == 2 * 10
    # Lengths are those of the VAE that ComfyUI makes for the model.
    assert (found["grid"], found["rate"]) == ([], job["fps"])
    # Of a step with a clip of more frames more memory is left free.
    image, clip, longer = found["room"]
    assert image < clip < longer
    assert found["longest"] == job["frames"]


SAME_SAMPLING = {"ssd1b", "sdxl_edm_v", "flux_schnell", "pixart_sigma"}
"""Models with the denoiser of one of the others and a way of sampling of another."""

EVERY = [
    (model, KINDS[at % len(KINDS)])
    for at, model in enumerate(each for each in TINY if each not in SAME_SAMPLING)
]
"""Each class with one kind, each kind with a third of the classes."""


@pytest.fixture(scope="module")
def every(comfy_host, tmp_path_factory):
    jobs = [
        {"model": model, "kind": kind, **(OF_CONVOLUTIONS if model == "sd15" else {})}
        for model, kind in EVERY
    ]
    return trained(comfy_host, tmp_path_factory.mktemp("every"), jobs)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("model", "kind"), EVERY)
def test_every_class_learns(every, model, kind):
    check(every[f"{model}_{kind}"], model)


LYCORIS = ("flux", "flux2", "qwen_image", "z_image", "wan21", "hunyuan_video", "kandinsky5")
"""Architectures of musubi-tuner's table of LoHa and LoKr, and Kandinsky 5, which it leaves out.

HunyuanVideo 1.5 stands in `test_start_frames`; ComfyUI 0.33 has no class for FramePack.
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["loha", "lokr"])
@pytest.mark.parametrize("model", LYCORIS)
def test_a_loha_and_a_lokr_of_each_architecture_are_what_comfyui_samples(
    comfy_host, tmp_path, model, kind
):
    job = {"model": model, **CLIPS.get(model, {}), "kind": kind}
    check(trained(comfy_host, tmp_path, [job])[f"{model}_{kind}"], model)
