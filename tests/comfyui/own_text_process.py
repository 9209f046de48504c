"""Runs inside ComfyUI's interpreter: which CLIPs the tiny MODELs take, of all that ComfyUI makes.

Arguments: FOLDER MODELS. MODELS is a JSON list of tiny MODELs; FOLDER gets ``results.json``: for
each the refused CLIPs, with what is said.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from loaded_pack import part

_T = "text_encoders"
CLIPS = {
    "sd1": ("sd1_clip", "SD1ClipModel"),
    "sdxl": ("sdxl_clip", "SDXLClipModel"),
    "refiner": ("sdxl_clip", "SDXLRefinerClipModel"),
    "sd2": (f"{_T}.sd2_clip", "SD2ClipModel"),
    "sd3": (f"{_T}.sd3_clip", "sd3_clip", {}),
    "sd3 of t5": (f"{_T}.sd3_clip", "sd3_clip", {"clip_l": False, "clip_g": False}),
    "flux": (f"{_T}.flux", "flux_clip", {}),
    "ltxv": (f"{_T}.lt", "ltxv_te", {}),
    "pixart": (f"{_T}.pixart_t5", "pixart_te", {}),
    "mochi": (f"{_T}.genmo", "mochi_te", {}),
    "wan": (f"{_T}.wan", "te", {}),
    "cosmos": (f"{_T}.cosmos", "te", {}),
    "aura": (f"{_T}.aura_t5", "AuraT5Model"),
    "lumina2": (f"{_T}.lumina2", "te", {}),
    "newbie": (f"{_T}.newbie", "te", {}),
    "hidream": (f"{_T}.hidream", "hidream_clip", {}),
    "hunyuan_video": (f"{_T}.hunyuan_video", "hunyuan_video_clip", {}),
    "omnigen2": (f"{_T}.omnigen2", "te", {}),
    "qwen_image": (f"{_T}.qwen_image", "te", {}),
    "hunyuan_image": (f"{_T}.hunyuan_image", "te", {}),
    "longcat": (f"{_T}.longcat_image", "te", {}),
    "kandinsky5": (f"{_T}.kandinsky5", "te", {}),
    "flux2": (f"{_T}.flux", "flux2_te", {}),
    "flux2 pruned": (f"{_T}.flux", "flux2_te", {"pruned": True}),
    "klein 4b": (f"{_T}.flux", "klein_te", {"model_type": "qwen3_4b"}),
    "klein 9b": (f"{_T}.flux", "klein_te", {"model_type": "qwen3_8b"}),
    "z_image": (f"{_T}.z_image", "te", {}),
    "krea2": (f"{_T}.krea2", "te", {}),
    "ovis": (f"{_T}.ovis", "te", {}),
    "anima": (f"{_T}.anima", "te", {}),
    "ideogram4": (f"{_T}.ideogram4", "te", {}),
    "hydit": (f"{_T}.hydit", "HyditModel"),
}
"""CLIPs of ComfyUI's loaders by name: module, class or what makes it, and with which sizes."""


def clip_of(name):
    """ComfyUI's CLIP without weights, at full size."""
    module, made, *sizes = CLIPS[name]
    kind = getattr(importlib.import_module(f"comfy.{module}"), made)
    if sizes:
        kind = kind(**sizes[0])
    model = kind(device=torch.device("meta"), dtype=torch.float16, model_options={})
    return SimpleNamespace(cond_stage_model=model, patcher=SimpleNamespace())


def expanded(clip):
    """The same with more tokens, as a finetune that knows more words."""
    table = clip.cond_stage_model.t5xxl.transformer.shared
    table.num_embeddings += 1000
    return clip


def refused(model, clip):
    """What is said of a CLIP before anything is encoded with it; nothing where it is taken."""
    host = part("nodes.host.graph_family")
    location = SimpleNamespace(variant="generate", reads_tokens=False)
    try:
        host.encoders_of(model, clip, None, probed=64)(host.graph_family(model), location)
    except part("trainer_core.errors").InputError as error:
        return [error.found, error.expected, error.remedy]
    return None


def main(folder, models):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip

    clips, results = {name: clip_of(name) for name in CLIPS}, {}
    for name in sorted(json.loads(models.read_text(encoding="utf-8"))):
        model = tiny_model(name)
        told = {kind: refused(model, clip) for kind, clip in clips.items()}
        told["tiny"] = refused(model, tiny_clip(TINY[name].text))
        results[name] = {kind: each for kind, each in told.items() if each}
    results["more words"] = [
        refused(tiny_model(name), expanded(clip_of("flux"))) for name in ("flux", "wan21")
    ]
    (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode(False):
        main(*map(Path, sys.argv[1:]))
