"""Runs inside ComfyUI's interpreter: which way and how fast a square moves in what is trained.

Usage: clip_speed_process.py FOLDER, with ComfyUI's folder in PYTHONPATH. FOLDER gets
``results.json``: the ways and speeds that were read from cached latents. The VAE has random
weights: latents are taken for the way and the speed whose own clip is nearest.
"""

import sys
from pathlib import Path

import av
import numpy
from graph_model_process import write_found
from loaded_pack import part

WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
RATES = {"left": 24, "right": 24, "up": 12, "down": 12}
"""Frames a second of the files; the square needs a second for its way in each of them."""

SPEEDS = {"third": 1 / 3, "right": 1.0, "double": 2.0}
SIDE, SQUARE, FRAMES, TRAINED_RATE = 64, 32, 9, 8.0


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
    (folder / f"{way}.txt").write_text(f"a square moves {way}", encoding="utf-8")


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
        "adapter": {"rank": 4},
        "training": {"steps": 1, "precision": "fp32"},
        "memory": {"device": "cpu"},
        "output": {"dir": str(folder / "output"), "name": f"at_{rate:g}"},
        "cache": {"dir": str(folder / f"cache_{rate:g}")},
    }
    return part("trainer_core.families.run_files").load_config(values)


def look(folder):
    import torch
    from safetensors.torch import load_file
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    sizes = TINY["wan21"]
    model, clip, vae = tiny_model("wan21"), tiny_clip(sizes.text), tiny_vae(sizes.vae)
    graph_family = part("nodes.host.graph_family")
    space = part("nodes.host.graph_model").GraphModel(model).space
    source = graph_family.encoders_of(model, clip, vae)
    known = {}
    for way in WAYS:
        write(folder / "clips", way)
        for speed, factor in SPEEDS.items():
            times = [min(1.0, factor * number / TRAINED_RATE) for number in range(FRAMES)]
            pixels = numpy.stack([frame(way, time) for time in times])
            known[way, speed] = space.normalized(vae.encode(torch.from_numpy(pixels) / 255))[0]

    def read(latents):
        distances = {name: float((each - latents).norm()) for name, each in known.items()}
        return min(distances, key=distances.get)

    def trained(rate):
        config = run_config(folder, rate)
        family = graph_family.graph_family(model)
        part("trainer_core.training").train(config, make_source=source, family=family)
        files = (folder / f"cache_{rate:g}").rglob("*.safetensors")
        held = [load_file(file).get("latents") for file in files]
        return [read(each) for each in held if each is not None]

    return {"right": trained(TRAINED_RATE), "third": trained(3 * TRAINED_RATE)}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_found(place, {"square": (place,)}, look)
