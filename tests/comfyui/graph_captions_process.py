"""Runs inside ComfyUI's interpreter: captions of a MODEL's dataset as they are encoded.

Arguments: FOLDER [EVERY]. FOLDER gets ``results.json``. With EVERY each class of tiny MODEL is
encoded for with its own CLIP alone.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from graph_model_process import run_config, write_image
from loaded_pack import part

CAPTIONS = {
    "miku (vocaloid)": r"miku \(vocaloid\)",
    r"tracer_\(overwatch\)": r"tracer_\(overwatch\)",
    "a (red:1.2) car": "a (red:1.2) car",
}
"""Captions to what is typed for KSampler."""


def prepared(folder, name, caption, *, escape=True, prompts=(), text=""):
    """What is encoded of one captioned image and of prompts, and what is said."""
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    sizes = TINY[name]
    write_image(folder / "images", sizes.pixels)
    (folder / "images" / "0.txt").write_text(caption, encoding="utf-8")
    with torch.inference_mode():
        model, clip, vae = tiny_model(name), tiny_clip(text or sizes.text), tiny_vae(sizes.vae)
    host, training = part("nodes.host.graph_family"), part("trainer_core.training")
    family = host.graph_family(model)
    config = run_config(folder, {"kind": "lora", "name": "run"}, sizes.pixels, family.name)
    captions = config.dataset.captions.model_copy(update={"escape_brackets": escape})
    dataset = config.dataset.model_copy(update={"captions": captions})
    preview = config.preview.model_copy(update={"prompts": list(prompts)})
    base = config.base.model_copy(update={"distilled": "train"})
    config = config.model_copy(update={"dataset": dataset, "preview": preview, "base": base})
    said = []
    observer = SimpleNamespace(
        notify=lambda event: said.append(str(event)), cancelled=lambda: False
    )
    where = training.SingleProcess(torch.device("cpu"))
    make = part("trainer_core.training.prepare.encode_dataset").prepare
    found = make(
        config,
        observer,
        where,
        host.encoders_of(model, clip, vae, probed=sizes.pixels),
        family=family,
    )
    return found, clip, said


def typed(clip, text):
    """What CLIPTextEncode gives KSampler."""
    import nodes

    with torch.inference_mode():
        return nodes.CLIPTextEncode().encode(clip, text)[0][0][0].clone()


def sample_of(found):
    return found.dataset.load(0).conditioning


def text_of(conditioning):
    restored = part("nodes.host.conditioning").restored_conditioning
    return restored(conditioning, torch.device("cpu"))["cross_attn"]


def brackets(folder, name):
    results = {}
    for number, (caption, prompt) in enumerate(CAPTIONS.items()):
        place = folder / f"{name}{number}"
        found, clip, _ = prepared(place, name, caption, prompts=[caption])
        raw, _, said = prepared(place / "raw", name, caption, escape=False)
        results[caption] = {
            "letters": torch.equal(text_of(sample_of(found)), typed(clip, prompt)),
            "raw": torch.equal(text_of(sample_of(raw)), typed(clip, caption)),
            "prompt": torch.equal(text_of(found.prompts[0].conditioning), typed(clip, caption)),
            "told": any("round brackets" in each for each in said),
        }
    return results


def refused(folder, name, text):
    """What is said of another model's CLIP, and what was encoded before."""
    try:
        prepared(folder, name, "a cat", text=text)
    except part("trainer_core.errors").InputError as error:
        encoded = [each.name for each in folder.rglob("*.safetensors")]
        return [error.found, error.expected, error.remedy, encoded]
    return None


WRONG = [("sdxl", "sd1"), ("flux", "sd3"), ("sd3", "flux"), ("sdxl", "flux")]


def every(folder):
    from tiny_models.sizes import TINY

    results = {name: refused(folder / name, name, "") for name in TINY}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def main(folder):
    results = {name: brackets(folder, name) for name in ("sdxl", "flux")}
    results["wrong"] = {
        f"{name} with {text}": refused(folder / f"{name}{text}", name, text) for name, text in WRONG
    }
    (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode(False):
        (every if sys.argv[2:] else main)(Path(sys.argv[1]))
