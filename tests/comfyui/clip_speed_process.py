"""Runs inside ComfyUI's interpreter: which way and how fast a square moves in what is learned.

Usage: clip_speed_process.py FOLDER RATE, with ComfyUI's folder in PYTHONPATH. FOLDER gets
``results.json``: the ways and speeds that were read from cached latents, from previews of the
trained adapter and from those of the base. The VAE has random weights: latents are taken for the
way and the speed whose own clip is nearest.
"""

import dataclasses
import sys
from pathlib import Path

import av
import numpy
from graph_model_process import as_latents, write_found
from loaded_pack import part

WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
RATES = {"left": 24, "right": 24, "up": 12, "down": 12}
"""Frames a second of the files; the square needs a second for its way in each of them."""

SPEEDS = {"third": 1 / 3, "right": 1.0, "double": 2.0}
SIDE, SQUARE, FRAMES, OWN_RATE = 64, 32, 9, 8.0
STEPS, DRAWN = 2000, 5
WIDE = {"dim": 128, "ffn_dim": 256, "num_heads": 4, "num_layers": 2}
"""A transformer that can hold four clips; its base knows nothing, so the adapter is large."""


def text_of(way):
    """Only one word: a random text encoder tells long texts of one other word hardly apart."""
    return " ".join([way] * 8)


def frame(way, at):
    """An image of the square at a share of its way."""
    room = SIDE - SQUARE
    down, across = (
        int(room * (at if part_of > 0 else 1 - at)) if part_of else room // 2
        for part_of in WAYS[way]
    )
    pixels = numpy.zeros((SIDE, SIDE, 3), numpy.uint8)
    pixels[down : down + SQUARE, across : across + SQUARE] = 255
    return pixels


def write(folder, way):
    """A clip of a second, and what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    rate = RATES[way]
    with av.open(str(folder / f"{way}.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width = stream.height = SIDE
        stream.pix_fmt, stream.options = "yuv444p", {"crf": "0"}
        # The last frame is shown at the end of the second.
        for number in range(rate + rate // 6):
            shown = frame(way, min(1.0, number / rate))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, "rgb24")))
        container.mux(stream.encode())
    (folder / f"{way}.txt").write_text(text_of(way), encoding="utf-8")


def run_config(folder, rate):
    values = {
        "family": "graph_model",
        "dataset": {
            "path": str(folder / "clips"),
            "resolution": SIDE,
            "frames": FRAMES,
            "fps": rate,
            "max_clips": 1,
        },
        "adapter": {
            "kind": "lora",
            "rank": 64,
            "targets": "all_linear",
            "rank_pattern": {"text_embedding.0": 32},
        },
        "training": {
            "steps": STEPS,
            "batch_size": 8,
            "optimizer": {"learning_rate": 4e-3},
            "schedule": {"warmup_steps": 20},
            "ema": {"decay": 0.98},
            "precision": "fp32",
        },
        "preview": {
            "prompts": [text_of(way) for way in WAYS for _ in range(DRAWN)],
            "every": 0,
            "width": SIDE,
            "height": SIDE,
            "steps": 12,
            "guidance": 1.0,
            "frames": FRAMES,
        },
        "memory": {"device": "cpu", "gradient_checkpointing": False},
        "output": {"dir": str(folder / "output"), "name": "square"},
        "cache": {"dir": str(folder / "cache")},
    }
    return part("trainer_core.families.run_files").load_config(values)


def look(folder, rate):
    import torch
    from safetensors.torch import load_file
    from tiny_models import denoisers
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    sizes = TINY["wan21"]
    denoisers.TINY = {"wide": dataclasses.replace(sizes, unet={**sizes.unet, **WIDE})}
    model = denoisers.tiny_model("wide")
    clip, vae = tiny_clip(sizes.text), tiny_vae(sizes.vae)
    graph_family = part("nodes.host.graph_family")
    space = part("nodes.host.graph_model").GraphModel(model).space
    source = graph_family.encoders_of(model, clip, vae)
    known = {}
    for way in WAYS:
        write(folder / "clips", way)
        for speed, factor in SPEEDS.items():
            times = [min(1.0, factor * number / OWN_RATE) for number in range(FRAMES)]
            pixels = numpy.stack([frame(way, time) for time in times])
            known[way, speed] = space.normalized(vae.encode(torch.from_numpy(pixels) / 255))[0]

    def read(latents):
        distances = {
            name: float((each - latents.reshape(each.shape)).norm()) for name, each in known.items()
        }
        return min(distances, key=distances.get)

    config, family = run_config(folder, rate), graph_family.graph_family(model)
    run = part("trainer_core.training").train(config, make_source=source, family=family)
    files = (folder / "cache").rglob("*.safetensors")
    held = [load_file(file).get("latents") for file in files]
    found = {"cached": [read(each) for each in held if each is not None]}
    sample = part("trainer_core.inference.pipeline").sample_prompts

    def latents_of(family, location):
        return as_latents(source(family, location))

    with torch.inference_mode(False), torch.no_grad():
        for what, file in (("trained", run.adapters[0]), ("base", None)):
            family = graph_family.graph_family(model)
            shown = sample(config, file, 1.0, latents_of, family=family)
            found[what] = [read(each) for each in shown]
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_found(place, {"square": (place, float(sys.argv[2]))}, look)
