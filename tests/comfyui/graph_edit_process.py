"""Runs inside ComfyUI's interpreter: MODELs are trained on edits, and preview one.

Usage: graph_edit_process.py FOLDER NAMES, with ComfyUI's folder in PYTHONPATH. NAMES is a JSON
list of tiny MODELs; FOLDER gets ``results.json``: what was found for each.
"""

import json
import sys
import traceback
from pathlib import Path

import torch
from graph_model_process import (
    CAPTION,
    DRAWN,
    SEED,
    as_latents,
    changed,
    loaded,
    losses,
    marks,
    run_config,
    write_image,
)
from loaded_pack import part


def write_edits(folder, side):
    """One pair of images; they differ."""
    write_image(folder / "images" / "training_images", side)
    write_image(folder / "others", side, 2)
    control = folder / "images" / "control_images" / "0.png"
    control.parent.mkdir()
    (folder / "others" / "1.png").rename(control)
    return control


def edit_config(folder, name, side, control):
    job = {"kind": "lora", "name": name, "steps": 3, "rate": 1e-2, "guidance": 2.0}
    config = run_config(folder, job, side, "graph_model")
    preview = config.preview.model_copy(update={"controls": [[str(control)]]})
    return config.model_copy(update={"preview": preview})


def drawn_by_comfyui(model, clip, vae, side, control, guidance):
    """The latents of KSampler with Set Reference Latent, as the model has them."""
    import numpy
    from comfy_extras.nodes_edit_model import ReferenceLatent
    from PIL import Image

    import nodes

    family_of = part("nodes.host.graph_family")
    pixels = numpy.asarray(Image.open(control)).astype("float32") / 255
    latent = nodes.VAEEncode().encode(vae, torch.from_numpy(pixels)[None])[0]

    def text(words):
        entry = nodes.CLIPTextEncode().encode(clip, words)[0]
        return ReferenceLatent.execute(entry, latent).result[0]

    positive, negative, scale = text(CAPTION), text(""), guidance
    if family_of.graph_family(model).takes_guidance(None):
        positive = [[each[0], {**each[1], "guidance": guidance}] for each in positive]
        scale = 1.0
    empty = {"samples": torch.zeros_like(latent["samples"])}
    words = (SEED, DRAWN, scale, "euler", "simple", positive, negative, empty, 1.0)
    samples = nodes.common_ksampler(model, *words)[0]["samples"]
    return model.model.process_latent_in(samples)


def edited(folder, name):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae
    from tiny_models.weights import weights_hash

    sizes = TINY[name]
    model, clip, vae = tiny_model(name), tiny_clip(sizes.text), tiny_vae(sizes.vae)
    control = write_edits(folder, sizes.pixels)
    config = edit_config(folder, name, sizes.pixels, control)
    family_of = part("nodes.host.graph_family")
    source = family_of.encoders_of(model, clip, vae)
    given = model, clip, vae, sizes.pixels, control, config.preview.guidance
    bare = drawn_by_comfyui(*given)
    before = weights_hash(model), *marks(model)
    train = part("trainer_core.training").train
    result = train(config, make_source=source, family=family_of.graph_family(model))
    with torch.inference_mode(False), torch.no_grad():
        (own,) = part("trainer_core.inference.pipeline").sample_prompts(
            config,
            result.adapters[0],
            1.0,
            lambda family, location: as_latents(source(family, location)),
            family=family_of.graph_family(model),
        )
    found = {"changed": changed(before, (weights_hash(model), *marks(model)))}
    patched, found["unread"] = loaded(model, result.adapters[0])
    theirs = drawn_by_comfyui(patched, *given[1:]).reshape(own.shape)
    found["losses"] = losses(result.folder)
    found["apart"] = float((own - theirs).abs().max() / theirs.abs().max())
    found["learned"] = float((theirs - bare.reshape(own.shape)).norm() / theirs.norm())
    return found


def main(folder, names):
    torch.set_num_threads(1)
    found = {}
    for name in json.loads(names.read_text(encoding="utf-8")):
        try:
            with torch.inference_mode():
                found[name] = edited(folder / name, name)
        except Exception as error:  # noqa: BLE001 - the test tells
            traceback.print_exc()
            found[name] = {"error": repr(error)}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
