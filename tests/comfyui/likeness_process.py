"""Runs inside ComfyUI's interpreter: what transformers' own CLIP sees in images.

Usage: likeness_process.py FOLDER, with ComfyUI's folder in PYTHONPATH. FOLDER has images ``*.png``,
and gets ``results.json``: name to embedding. The weights are those of the tiny CLIP_VISION.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from PIL import Image
from tiny_models.sizes import BEGINNING
from tiny_models.vaes import tiny_vision
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

MODEL = "wan21_i2v"
MEAN, SPREAD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def main(folder):
    vision = tiny_vision(BEGINNING[MODEL].vision)
    names = {*CLIPVisionConfig().to_dict()} & vision.config.keys()
    model = CLIPVisionModelWithProjection(
        CLIPVisionConfig(**{name: vision.config[name] for name in names})
    ).eval()
    model.load_state_dict(vision.model.state_dict(), strict=True)
    side, found = vision.image_size, {}
    for path in sorted(folder.glob("*.png")):
        image = numpy.asarray(Image.open(path).convert("RGB"), dtype=numpy.float32) / 255
        pixels = torch.from_numpy(image).movedim(-1, 0)[None]
        pixels = torch.nn.functional.interpolate(
            pixels, size=(side, side), mode="bicubic", antialias=True
        )
        pixels = (pixels * 255).clip(0, 255).round() / 255
        pixels = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SPREAD)[:, None, None]
        with torch.no_grad():
            found[path.stem] = model(pixel_values=pixels).image_embeds[0].tolist()
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
