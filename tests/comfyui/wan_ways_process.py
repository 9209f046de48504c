"""Runs inside ComfyUI's interpreter: a tiny Wan, trained as a graph's MODEL and from its file.

Arguments: FOLDER JOBS. JOBS is a JSON list of ``{"model", "dataset", ...}``; FOLDER gets
``results.json``: what was found for each.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from clip_files import write_clip
from graph_model_process import CAPTION, losses, run_config, write_found, write_image
from loaded_pack import part

FRAMES, HEADS = 9, 2


def wide_model(name):
    """A tiny model with heads of 128, as those of the published ones, and its sizes."""
    from tiny_models import denoisers
    from tiny_models.sizes import BEGINNING, TINY

    sizes = TINY.get(name) or BEGINNING[name]
    unet = {**sizes.unet, "dim": 128 * HEADS, "num_heads": HEADS}
    denoisers.TINY = {**TINY, "wide": dataclasses.replace(sizes, unet=unet)}
    return denoisers.tiny_model("wide"), sizes


class Vae:
    """The graph's VAE, as the family calls its own."""

    def __init__(self, encoders):
        self.encode_clip, self.encode = encoders.encode_clip, encoders.encode_image
        self.model = torch.nn.Module()
        self.model.device = torch.device("cpu")

    def encode_frames(self, pixels):
        """Of pixels in [-1, 1], which need not be whole numbers."""
        return self.encode_clip((pixels + 1) * 127.5)


def seen_by(vision):
    """The vision model of the graph as transformers' class, of the same weights."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    state = {n: e for n, e in vision.model.state_dict().items() if n.startswith("vision_model.")}
    sizes = {"intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = CLIPVisionConfig(hidden_size=1280, image_size=56, patch_size=14, **sizes)
    config.hidden_act = "gelu"
    model = CLIPVisionModel(config).eval()
    known = model.state_dict()
    renamed = {n if n in known else n.removeprefix("vision_model."): e for n, e in state.items()}
    model.load_state_dict(renamed)
    mean, deviation = (
        torch.tensor(each).view(3, 1, 1) for each in (vision.image_mean, vision.image_std)
    )
    return part("trainer_core.families.wan.encode").Vision(model, mean, deviation)


def padded(encoders):
    """The graph's encoders, with zeros behind a text up to 512 rows, as UMT5's in ComfyUI."""
    stored = part("nodes.host.conditioning")

    @dataclasses.dataclass(eq=False)
    class Padded(type(encoders)):
        def encode_text(self, caption, controls=()):
            entry = stored.restored_conditioning(super().encode_text(caption), torch.device("cpu"))
            text = entry.pop("cross_attn")
            text = torch.nn.functional.pad(text, (0, 0, 0, 512 - text.shape[1]))
            return stored.stored_conditioning([[text, entry]], caption)

    values = {each.name: getattr(encoders, each.name) for each in dataclasses.fields(encoders)}
    return Padded(**values)


def headless_source(source, vision):
    """What encodes for the family's own run with the graph's CLIP and VAE."""
    encode = part("trainer_core.families.wan.encode")

    class Same(encode.WanEncoders):
        def encode_text(self, caption, controls=()):
            return {"text_embeddings": self.tokenizer.encode_text(caption)["t0"]}

        def encode_texts(self, captions, controls):
            return [self.encode_text(caption) for caption in captions]

    class Source:
        identity, weighs, sounds = "the graph's", False, ""

        def __init__(self, graph, begins):
            self.graph = graph
            own = {"vision": None if vision is None else seen_by(vision), "lays_over": not begins}
            self.encoders = Same(graph, None, Vae(graph), 512, "Wan", **own)

        def open(self):
            return self.encoders

        def decoder(self):
            return self.graph.decoder()

        def text_limit(self):
            return None

        def close(self):
            pass

    def make(family, location):
        found = part("trainer_core.families.wan.bases").reads(location.file, location.denoiser)
        return Source(source, found.begins)

    return make


def factors(file):
    from safetensors.torch import load_file

    return load_file(file)


def look(folder, job):
    from safetensors.torch import save_file
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae, tiny_vision

    family_of = part("nodes.host.graph_family")
    train = part("trainer_core.training").train
    name, place = job["model"], folder / job["model"]
    model, sizes = wide_model(name)
    clip, vae = tiny_clip(sizes.text), tiny_vae(sizes.vae)
    vision = tiny_vision(sizes.vision) if sizes.vision else None
    rate = part("nodes.host.graph_model").GraphModel(model).clips.rate
    for number in "ab":
        write_clip(place / "images", sizes.pixels, FRAMES, rate, f"clip_{number}", CAPTION)
    if job.pop("images"):
        write_image(place / "images", sizes.pixels)
    file = place / job.pop("file")
    state = model.model.diffusion_model.state_dict()
    save_file({key: each.contiguous() for key, each in state.items()}, file)
    job |= {"name": "headless", "kind": "lora", "frames": FRAMES, "steps": 4, "rate": 5e-4}

    def config(family, start=None, **changes):
        job["adapter"] = {"start_from": start}
        made = run_config(place / changes.get("name", family), job, sizes.pixels, family)
        base = made.base if family != "wan" else made.base.model_copy(update={"path": str(file)})
        dataset = made.dataset.model_copy(update={"path": str(place / "images")})
        return made.model_copy(update={"base": base, "dataset": dataset})

    with torch.inference_mode(False):
        family = family_of.graph_family(model)
        bare = family_of.encoders_of(model, clip, vae, vision=vision)
        source = lambda family, location: padded(bare(family, location))  # noqa: E731
        location = part("trainer_core.bases.locate").locate_base(
            part("trainer_core.config").BaseSection(), family, False, to_train=False
        )
        own = headless_source(source(family, location), vision)
        first = train(config("wan", name="first"), make_source=own)
        start = str(first.adapters[0])
        ours = train(config("wan", start), make_source=own)
        theirs = train(config(family.name, start), make_source=source, family=family)
    before, one, other = (factors(each) for each in (start, ours.adapters[0], theirs.adapters[0]))
    keys = sorted(one)
    found = {"keys": [keys == sorted(each) for each in (before, other)], "layers": len(keys) // 3}
    found["losses"] = [losses(each.folder) for each in (ours, theirs)]
    joined = [
        torch.cat([each[key].flatten().float() for key in keys]) for each in (before, one, other)
    ]
    found["apart"] = float((joined[1] - joined[2]).abs().max())
    found["changed"] = float((joined[1] - joined[0]).abs().max())
    return found


def main(folder, jobs):
    wanted = {job["model"]: (folder, job) for job in json.loads(jobs.read_text(encoding="utf-8"))}
    write_found(folder, wanted, look)


main(*map(Path, sys.argv[1:]))
