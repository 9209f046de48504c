"""Writes a .jpg beside each shipped workflow, which ComfyUI's template browser shows.

Workflows that need no model file are run to their end, in full, by a ComfyUI that has the pack,
and their images are shown. The others cannot be run without their models: their graph is drawn.
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
from typing import Any

from PIL import Image

from scripts.workflow_graphs.thumbnail import of_graph, of_images

ROOT = Path(__file__).resolve().parents[1]
DRAWN = ROOT / "workflows"
QUEUED = ROOT / "tests" / "workflows"
LARGEST = 60_000

# Titles; of those that are run, the columns: label, and title of the node with the images.
_RUN: Mapping[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "embedded_generate": (
        "Teach a tiny base a diamond\nno model file needed",
        [("before", "Without the adapter"), ("trained", "With the adapter")],
    ),
    "embedded_edit": (
        "Teach a tiny base an edit\nno model file needed",
        [
            ("control", "Control image"),
            ("before", "Without the adapter"),
            ("trained", "With the adapter"),
        ],
    ),
    "convert_and_compare": (
        "Convert an adapter\nand compare the images",
        [
            ("base alone", "Base alone"),
            ("comfyui", "Layout comfyui"),
            ("diffusers", "Layout diffusers"),
        ],
    ),
}
_DRAWN: Mapping[str, str] = {
    "qwen_image_lokr": "Qwen-Image\nLoKr from your images",
    "qwen_image_edit": "Qwen-Image-Edit\nLoKr from pairs of images",
    "flux_dev_lora": "FLUX.1-dev\nLoRA from your images",
    "flux_kontext_lora": "FLUX.1 Kontext\nLoRA from pairs of images",
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
    ids = {node.get("title"): str(node["id"]) for node in _nodes(name) if node.get("title")}
    shown = {n.get("title"): str(n["id"]) for n in _nodes(name) if n["type"] == "PreviewImage"}
    if "Control image" in ids:
        shown["Control image"] = "control"
        link = [ids["Control image"], 0]
        prompt["control"] = {"class_type": "PreviewImage", "inputs": {"images": link}}
    images = server.run(prompt)
    columns = [(label, images[shown[node]]) for label, node in wanted]
    rows = max(len(column) for _, column in columns)
    # One control image serves every prompt.
    return of_images(title, [(label, (column * rows)[:rows]) for label, column in columns])


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
    """Draws graphs, and runs what can be run when there is a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", nargs="?", help="address of a running ComfyUI with the pack")
    parser.add_argument("--only", nargs="*", help="names of workflows; default: all")
    options = parser.parse_args()
    wanted = set(options.only or [*_RUN, *_DRAWN])
    for name in wanted & _DRAWN.keys():
        write(name, of_graph(_DRAWN[name], _workflow(name)))
    if options.server:
        server = Server(options.server)
        for name in (name for name in _RUN if name in wanted):
            write(name, photographed(name, server))


if __name__ == "__main__":
    main()
