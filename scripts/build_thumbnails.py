"""Writes a .jpg beside each shipped workflow, which ComfyUI's template browser shows.

Workflows that need no model file are run to their end, in full, by a ComfyUI that has the pack,
and their images are shown. The others cannot be run without their models: they get a card.
Run from the root of the repository: ``python -m scripts.build_thumbnails http://127.0.0.1:8188``.
"""

from __future__ import annotations

import argparse
import io
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from scripts.workflow_graphs.bases import FULL_SIZE
from scripts.workflow_graphs.shipped import WORKFLOWS
from scripts.workflow_graphs.thumbnail import of_images, of_words
from scripts.workflow_graphs.video import VIDEO

ROOT = Path(__file__).resolve().parents[1]
DRAWN = ROOT / "workflows"
QUEUED = ROOT / "tests" / "workflows"
LARGEST = 60_000


class Column(NamedTuple):
    """A column of a thumbnail.

    Attributes:
        label: What it shows.
        node: Title of the node with its images.
        half: Which half of each image, 0 or 1; None is the whole.
    """

    label: str
    node: str
    half: int | None = None


# Titles, and the columns, of those that are run.
_RUN: Mapping[str, tuple[str, Sequence[Column]]] = {
    "01_first_adapter": (
        "Your first adapter, in KSampler\nno model file needed",
        [
            Column("without", "Without and with the adapter", 0),
            Column("with it", "Without and with the adapter", 1),
        ],
    ),
    "41_convert_and_compare": (
        "Convert an adapter\nand compare the images",
        [
            Column("base alone", "Base alone"),
            Column("comfyui", "Layout comfyui"),
            Column("diffusers", "Layout diffusers"),
        ],
    ),
    "51_advanced_first_adapter": (
        "The first adapter\nwith every setting",
        [Column("without", "Without the adapter"), Column("with it", "With the adapter")],
    ),
    "52_advanced_first_edit": (
        "An edit from pairs of images\nwith every setting",
        [
            Column("control", "Control image"),
            Column("without", "Without the adapter"),
            Column("with it", "With the adapter"),
        ],
    ),
    "53_advanced_several_folders": (
        "Several folders and masks\nwith every setting",
        [Column("without", "Without the adapter"), Column("with it", "With the adapter")],
    ),
}


class Server:
    """A running ComfyUI.

    Args:
        address: Such as ``http://127.0.0.1:8188``.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def run(self, prompt: Mapping[str, Any]) -> dict[str, list[Image.Image]]:
        """Run a workflow to its end; the images by the node that showed them.

        Raises:
            RuntimeError: When it fails.
        """
        body = json.dumps({"prompt": prompt}).encode()
        request = urllib.request.Request(f"{self._address}/prompt", body)
        prompt_id = json.loads(self._read(request))["prompt_id"]
        found: dict[str, Any] = {}
        while prompt_id not in found:
            time.sleep(1)
            found = json.loads(self._read(f"{self._address}/history/{prompt_id}"))
        entry = found[prompt_id]
        if entry["status"]["status_str"] != "success":
            raise RuntimeError(entry["status"]["messages"][-1])
        return {
            node: [self._image(place) for place in output["images"]]
            for node, output in entry["outputs"].items()
            if "images" in output
        }

    def _image(self, place: Mapping[str, str]) -> Image.Image:
        query = urllib.parse.urlencode(place)
        return Image.open(io.BytesIO(self._read(f"{self._address}/view?{query}")))

    @staticmethod
    def _read(request: urllib.request.Request | str) -> bytes:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()


def photographed(name: str, server: Server) -> Image.Image:
    """Run a workflow and show its images.

    Args:
        name: The workflow's.
        server: Where.
    """
    title, wanted = _RUN[name]
    prompt = json.loads((QUEUED / f"{name}.json").read_text(encoding="utf-8"))
    shown = {n.get("title"): str(n["id"]) for n in _nodes(name) if n["type"] == "PreviewImage"}
    composed = [key for key, node in prompt.items() if node["class_type"] == "ImageCompositeMasked"]
    for key in composed:
        shown["Control image"] = "control"
        prompt["control"] = {"class_type": "PreviewImage", "inputs": {"images": [key, 0]}}
    images = server.run(prompt)
    columns = [
        (each.label, [_half(i, each.half) for i in images[shown[each.node]]]) for each in wanted
    ]
    rows = max(len(column) for _, column in columns)
    # One control image serves every prompt.
    return of_images(title, [(label, (column * rows)[:rows]) for label, column in columns])


def _half(image: Image.Image, half: int | None) -> Image.Image:
    """A half of two images side by side, without what is between them."""
    if half is None:
        return image
    side = image.height
    left = 0 if half == 0 else image.width - side
    return image.crop((left, 0, left + side, side))


def cards() -> dict[str, Image.Image]:
    """The thumbnails of workflows that need models."""
    names = [make().name for make in WORKFLOWS]
    found: dict[str, Image.Image] = {}
    for base in FULL_SIZE:
        images = "pairs of images" if base.edits else "your images"
        if base.layered:
            images = "images with layers"
        (name,) = (each for each in names if each.endswith(f"_quick_{base.file}"))
        files = f"{len(base.files)} model files" if base.files[1:] else "one checkpoint"
        words = ("Train LoRA (Quick)", "then KSampler", files)
        found[name] = of_words(f"A LoRA from {images}\nwith a few answers", base.name, words)
    for each in VIDEO:
        (name,) = (one for one in names if one.endswith(f"_quick_{each.file}"))
        words = ("Train LoRA (Quick)", "then KSampler", f"{each.rate:g} frames a second")
        found[name] = of_words("A LoRA from your clips\nwith a few answers", each.name, words)
    return found


def _nodes(name: str) -> list[dict[str, Any]]:
    return _workflow(name)["nodes"]


def _workflow(name: str) -> dict[str, Any]:
    return json.loads((DRAWN / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, image: Image.Image) -> None:
    """Write the image as small as it has to be.

    Args:
        name: The workflow's.
        image: Its thumbnail.
    """
    for quality in (92, 85, 75, 60):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True, subsampling=0)
        if len(buffer.getvalue()) <= LARGEST:
            break
    (DRAWN / f"{name}.jpg").write_bytes(buffer.getvalue())
    print(f"wrote {name}.jpg, {len(buffer.getvalue())} bytes")


def main() -> None:
    """Makes cards, and runs what can be run when there is a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", nargs="?", help="address of a running ComfyUI with the pack")
    parser.add_argument("--only", nargs="*", help="names of workflows; default: all")
    options = parser.parse_args()
    made = cards()
    wanted = set(options.only or [*_RUN, *made])
    for name in wanted & made.keys():
        write(name, made[name])
    if options.server:
        server = Server(options.server)
        for name in (name for name in _RUN if name in wanted):
            write(name, photographed(name, server))


if __name__ == "__main__":
    main()
