"""Runs inside ComfyUI's interpreter: every tiny MODEL through ComfyUI's own nodes.

Usage: tiny_models_process.py FOLDER [NAME ...], with ComfyUI's folder in PYTHONPATH; FOLDER gets
``results.json``: what was found for each MODEL.
"""

import json
import sys
from pathlib import Path

CLOSER = ("sdxl", "flux", "wan21")
PRECISIONS = ("bf16", "fp16 cast", "bf16 cast", "fp8 cast")
SHORT, LONG = "a red diamond", "a large blue circle on a wide green square, and " * 8


def main(folder, *names):
    import comfy.utils
    import torch
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae
    from tiny_models.weights import weights_hash

    import nodes

    comfy.utils.PROGRESS_BAR_ENABLED = False
    names = names or tuple(TINY)
    found = {}
    clips = {kind: tiny_clip(kind) for kind in {TINY[name].text for name in names}}
    vaes = {kind: tiny_vae(kind) for kind in {TINY[name].vae for name in names}}
    for name in names:
        sizes = TINY[name]
        model, clip, vae = tiny_model(name), clips[sizes.text], vaes[sizes.vae]
        side = sizes.pixels
        image = torch.linspace(0, 1, side * side * 3).view(1, side, side, 3)
        (latent,) = nodes.VAEEncode().encode(vae, image)
        texts = {
            text: nodes.CLIPTextEncode().encode(clip, text)[0] for text in (SHORT, "a cat", LONG)
        }

        def drawn(text=SHORT, seed=1, model=model, latent=latent, texts=texts):
            words = (seed, 2, 1.0, "euler", "simple", texts[text], texts["a cat"], latent, 1.0)
            return nodes.common_ksampler(model, *words)[0]["samples"]

        before = weights_hash(model)
        plain = drawn()

        def change(other, plain=plain):
            return float((other - plain).norm() / plain.norm())

        more = {}
        if name in CLOSER:
            others = {kind: drawn(model=tiny_model(name, precision=kind)) for kind in PRECISIONS}
            more["precisions"] = {kind: change(other) for kind, other in others.items()}
            more["seeds"] = [weights_hash(tiny_model(name, seed)) for seed in (0, 1)]
        (picture,) = nodes.VAEDecode().decode(vae, {"samples": plain})
        found[name] = {
            "model_type": model.model.model_type.name,
            "image": side,
            "latent": list(latent["samples"].shape),
            "channels": model.model.latent_format.latent_channels,
            "dimensions": model.model.latent_format.latent_dimensions,
            "downscale": model.model.latent_format.spacial_downscale_ratio,
            "shape": list(plain.shape),
            "picture": list(picture.shape),
            "finite": bool(plain.isfinite().all() and picture.isfinite().all()),
            "size": float(plain.std()),
            "again": change(drawn()),
            "seed": change(drawn(seed=2)),
            "text": change(drawn("a cat")),
            "long": change(drawn(LONG)),
            "lengths": [text[0][0].shape[1] for text in texts.values()],
            "weights": sum(each.numel() for each in model.model.diffusion_model.parameters()),
            "inference": all(each.is_inference() for each in model.model.parameters()),
            "hash": [before, weights_hash(model)],
            **more,
        }
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with __import__("torch").inference_mode():
        main(Path(sys.argv[1]), *sys.argv[2:])
