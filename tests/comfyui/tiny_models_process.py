"""Runs inside ComfyUI's interpreter: every tiny MODEL through ComfyUI's own nodes.

Usage: tiny_models_process.py FOLDER [NAME ...], with ComfyUI's folder in PYTHONPATH; FOLDER gets
``results.json``: what was found for each MODEL.
"""

import json
import sys
from pathlib import Path

CLOSER = ("sdxl", "flux", "wan21")
SHORT, OTHER = "a red diamond", "a cat"
LONG = "a large blue circle on a wide green square, and " * 8


def main(folder, *names):
    import comfy.utils
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    comfy.utils.PROGRESS_BAR_ENABLED = False
    names = names or tuple(TINY)
    clips = {kind: tiny_clip(kind) for kind in {TINY[name].text for name in names}}
    vaes = {kind: tiny_vae(kind) for kind in {TINY[name].vae for name in names}}
    found = {name: look(name, clips[TINY[name].text], vaes[TINY[name].vae]) for name in names}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def look(name, clip, vae):
    """What ComfyUI's nodes say of one MODEL."""
    import torch
    from tiny_models.denoisers import PRECISIONS, tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.weights import weights_hash

    import nodes

    model, side = tiny_model(name), TINY[name].pixels
    image = torch.linspace(0, 1, side * side * 3).view(1, side, side, 3)
    (latent,) = nodes.VAEEncode().encode(vae, image)
    texts = {text: nodes.CLIPTextEncode().encode(clip, text)[0] for text in (SHORT, OTHER, LONG)}

    def drawn(text=SHORT, seed=1, cfg=1.0, model=model):
        words = (seed, 2, cfg, "euler", "simple", texts[text], texts[OTHER], latent, 1.0)
        return nodes.common_ksampler(model, *words)[0]["samples"]

    before = weights_hash(model)
    plain = drawn()
    # Guidance puts both texts, of different length, through the model.
    long = drawn(LONG, cfg=2.0)
    (picture,) = nodes.VAEDecode().decode(vae, {"samples": plain})

    def change(other):
        return float((other - plain).norm() / plain.norm())

    found = {
        "model_type": model.model.model_type.name,
        "image": side,
        "latent": list(latent["samples"].shape),
        "channels": model.model.latent_format.latent_channels,
        "dimensions": model.model.latent_format.latent_dimensions,
        "downscale": model.model.latent_format.spacial_downscale_ratio,
        "shape": list(plain.shape),
        "picture": list(picture.shape),
        "finite": all(bool(each.isfinite().all()) for each in (plain, long, picture)),
        "again": change(drawn()),
        "seed": change(drawn(seed=2)),
        "text": change(drawn(OTHER)),
        "long": change(long),
        "lengths": [text[0][0].shape[1] for text in texts.values()],
        "inference": all(each.is_inference() for each in model.model.parameters()),
        "hash": [before, weights_hash(model)],
    }
    if name in CLOSER:
        others = {kind: drawn(model=tiny_model(name, precision=kind)) for kind in PRECISIONS}
        found["precisions"] = {kind: change(other) for kind, other in others.items()}
        found["seeds"] = [weights_hash(tiny_model(name, seed)) for seed in (0, 1)]
    return found


if __name__ == "__main__":
    with __import__("torch").inference_mode():
        main(Path(sys.argv[1]), *sys.argv[2:])
