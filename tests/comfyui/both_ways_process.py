"""Runs inside ComfyUI's interpreter: files of small bases are trained as MODELs of the graph.

Usage: both_ways_process.py FOLDER, with ComfyUI's folder in PYTHONPATH. FOLDER has
``jobs.json``, a list: each has a ``name``, a ``base`` (a file), ``sizes`` (`promise_process`),
``texts`` (a caption to a file of what CLIPTextEncode would give), ``channels``, ``pixels`` and
``run`` (a run file). It gets ``results.json``: to each name the adapter, or the error.
"""

import json
import sys
from pathlib import Path

import torch
from graph_model_process import write_found
from loaded_pack import part
from made_encodings import MadeEncodings, made_latents
from promise_process import small_model
from safetensors.torch import load_file


def stored(caption, file):
    """What the graph's encoders would keep of a text."""
    entry = load_file(file)
    cross = entry.pop("cross_attn")
    return part("nodes.host.conditioning").stored_conditioning([[cross, entry]], caption)


def trained(job):
    import comfy.sd

    family_of = part("nodes.host.graph_family")
    with small_model(job["sizes"]):
        options = {"dtype": torch.float32}
        model = comfy.sd.load_diffusion_model(job["base"], model_options=options)
    with torch.inference_mode(False):
        texts = {caption: stored(caption, file) for caption, file in job["texts"].items()}
        made = MadeEncodings("model", texts, made_latents(job["channels"]), job["pixels"])
    config = part("trainer_core.families.run_files").load_config(job["run"])
    family, train = family_of.graph_family(model), part("trainer_core.training").train
    result = train(config, make_source=lambda *_: made, family=family)
    return {"adapter": str(result.adapters[0]), "folder": str(result.folder)}


def main(folder):
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    write_found(folder, {job["name"]: (job,) for job in jobs}, trained)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
