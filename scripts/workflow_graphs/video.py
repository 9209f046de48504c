"""Workflows of models of videos: a few answers, clips, and the adapter in ComfyUI's own sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import sampling
from .bases import model
from .figures import WORDS
from .graph import Node, Section, Subgraph, Workflow

_TRIGGER = "ohwx"
_TEXTS = ("clip_name", "text_encoder")
"""How inputs that name a text encoder's file begin."""
_NOTE = """
## Train a LoRA for {name} on clips

1. Drop 10 to 40 clips of 2 to 10 seconds on **Train LoRA (Quick)**, or choose their *folder*. A
   text file beside each says what moves and how. Images may lie beside them.
2. Say in *goal* what you teach; *motion* is a movement or a camera move. *trigger_word* is a
   made-up word that calls it up: it stands in the *prompt* on the right as well.
3. Choose the {files} model files below.
4. Press **Run**. The panel shows how the clips are cut, and previews that move.
{more}
**Then** KSampler generates the *prompt* with your adapter, and **Save Adapter** has written the
file for *Load LoRA* (key R lists it).
"""
_BOTH = """
Each of the two experts is trained at its own levels of noise, by a node of its own: give both the
same answers.
"""
_BEGINS = """
Each part of a clip begins with its own first frame, and what is generated with *Image to begin
with*.
"""
_SOUNDS = """
The sound of a clip is learned with it; clips without sound teach none.
"""


@dataclass(frozen=True, slots=True)
class VideoModel:
    """A model of videos of full size.

    Attributes:
        file: What its workflow is called behind ``quick``.
        name: What people call it.
        bases: Its diffusion model or checkpoint; of two experts the one for high noise first.
        clip: Class and settings of the text encoders' loader.
        vae: File of the VAE; empty for a checkpoint that has it.
        sampling: Makes what generates with an adapter, or with one for each expert.
        rate: Frames per second of what is generated.
        begins: Whether its clips begin with an image.
        sounds: Whether it makes sound, with a VAE that its checkpoint has.
    """

    file: str
    name: str
    bases: tuple[str, ...]
    clip: tuple[str, Mapping[str, Any]]
    vae: str
    sampling: Callable[[], Subgraph]
    rate: float
    begins: bool = False
    sounds: bool = False


def quick_video(number: int, choice: VideoModel) -> Workflow:
    """Train a model of videos with a few answers."""
    flow = Workflow(f"{number:02}_quick_{choice.file}", f"{choice.name} from clips, then KSampler")
    kind, values = choice.clip
    texts = [model(name) for key, name in values.items() if key.startswith(_TEXTS)]
    clip = flow.node(kind, values, models=texts)
    if choice.vae:
        vae = flow.node("VAELoader", {"vae_name": choice.vae}, models=[model(choice.vae)])
        loaders = [
            flow.node("UNETLoader", {"unet_name": each}, models=[model(each)])
            for each in choice.bases
        ]
        nodes, decoder = [*loaders, clip, vae], vae["VAE"]
    else:
        (base,) = choice.bases
        loaders = [flow.node("CheckpointLoaderSimple", {"ckpt_name": base}, models=[model(base)])]
        nodes, decoder = [*loaders, clip], loaders[0]["VAE"]
    shared = {"clip": clip["CLIP"], "vae": decoder}
    if choice.sounds:
        audio = flow.node("LTXVAudioVAELoader", {"ckpt_name": choice.bases[0]})
        nodes.append(audio)
        shared["audio_vae"] = audio["Audio VAE"]
    trains, loras, saves = _trained(flow, choice, loaders, shared)
    begin: list[Node] = []
    if choice.begins:
        begin = [flow.node("LoadImage", {"image": "example.png"}, title="Image to begin with")]
    sampler = flow.several(
        choice.sampling(),
        {
            **dict(
                zip(("model", "low_noise_model"), (each["model"] for each in loras), strict=False)
            ),
            **shared,
            **({"image": begin[0]["IMAGE"]} if begin else {}),
            "prompt": f"{_TRIGGER} walks through a garden, the camera follows",
        },
        title="Generate with the adapter",
    )
    prefix = f"adapter_trainer/{choice.file}"
    saved = flow.node("SaveVideo", {"video": sampler["VIDEO"], "filename_prefix": prefix})
    files = WORDS[len(texts) + bool(choice.vae) + len(choice.bases)]
    more = (
        (_BOTH if len(choice.bases) > 1 else "")
        + (_BEGINS if begin else "")
        + (_SOUNDS if choice.sounds else "")
    )
    note = flow.note(_NOTE.format(name=choice.name, files=files, more=more), 400)
    flow.row(
        Section("1. Model files", [[note, *nodes]]),
        Section("2. Train", [[each] for each in trains]),
        Section("3. Save, and generate", [[*loras, *saves], [*begin, sampler, saved]]),
    )
    return flow


def _trained(
    flow: Workflow, choice: VideoModel, loaders: list[Node], shared: Mapping[str, Any]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Add what trains, loads and saves the adapter of each expert.

    The second expert sees the first one with its adapter, so that its previews are what both make.
    """
    trains, loras, saves = [], [], []
    names = ("_high_noise", "_low_noise") if len(loaders) > 1 else ("",)
    for number, (loader, ending) in enumerate(zip(loaders, names, strict=True)):
        other = {}
        if ending:
            other["other_expert"] = loras[0]["model"] if number else loaders[1]["MODEL"]
            # A loader of another pack may not tell the file's name.
            other["expert"] = ending.strip("_").replace("_", " ")
        answers = {"folder": "datasets/my_clips", "name": f"my_{choice.file}{ending}"}
        goal = {"goal": "person", "trigger_word": _TRIGGER}
        train = flow.node(
            "AdapterTrainerQuick", {**answers, "model": loader["MODEL"], **shared, **goal, **other}
        )
        lora = flow.node("LoraModelLoader", {"model": loader["MODEL"], "lora": train["lora"]})
        trains.append(train)
        loras.append(lora)
        saves.append(flow.node("AdapterTrainerSave", {"run": train["run"]}))
    return trains, loras, saves


_WAN = ("CLIPLoader", {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan"})
_LTX23 = "ltx-2.3-22b-dev-fp8.safetensors"
VIDEO = (
    VideoModel(
        "wan22_t2v",
        "Wan 2.2 A14B text to video",
        (
            "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors",
            "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors",
        ),
        _WAN,
        "wan_2.1_vae.safetensors",
        sampling.wan_experts,
        16.0,
    ),
    VideoModel(
        "wan22_5b",
        "Wan 2.2 5B",
        ("wan2.2_ti2v_5B_fp16.safetensors",),
        _WAN,
        "wan2.2_vae.safetensors",
        sampling.wan_5b,
        24.0,
    ),
    VideoModel(
        "hunyuan_video_15",
        "HunyuanVideo 1.5",
        ("hunyuanvideo1.5_720p_t2v_fp16.safetensors",),
        (
            "DualCLIPLoader",
            {
                "clip_name1": "qwen_2.5_vl_7b_fp8_scaled.safetensors",
                "clip_name2": "byt5_small_glyphxl_fp16.safetensors",
                "type": "hunyuan_video_15",
            },
        ),
        "hunyuanvideo15_vae_fp16.safetensors",
        sampling.hunyuan_video_15,
        24.0,
    ),
    VideoModel(
        "ltx_video",
        "LTX-Video 2B",
        ("ltx-video-2b-v0.9.safetensors",),
        ("CLIPLoader", {"clip_name": "t5xxl_fp16.safetensors", "type": "ltxv"}),
        "",
        sampling.ltx_video,
        25.0,
    ),
    VideoModel(
        "wan22_i2v",
        "Wan 2.2 A14B image to video",
        (
            "wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors",
            "wan2.2_i2v_low_noise_14B_fp8_scaled.safetensors",
        ),
        _WAN,
        "wan_2.1_vae.safetensors",
        sampling.wan_experts_from_image,
        16.0,
        begins=True,
    ),
    VideoModel(
        "ltx23",
        "LTX-2.3 with sound",
        (_LTX23,),
        (
            "LTXAVTextEncoderLoader",
            {"text_encoder": "gemma_3_12B_it_fp4_mixed.safetensors", "ckpt_name": _LTX23},
        ),
        "",
        sampling.ltx_video_and_sound,
        25.0,
        sounds=True,
    ),
)
"""In the order of their workflows."""
