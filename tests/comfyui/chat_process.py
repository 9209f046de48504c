"""Runs inside ComfyUI's interpreter: encode captions with its own CLIP of a small chat model.

FOLDER has ``clip.safetensors`` and ``jobs.json``; it gets ``results.safetensors`` and
``results.json``.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from encoders_process import Session
from loaded_pack import part


def load_clip(folder, jobs, module, make, tokenizer):
    """A CLIP as ComfyUI's loader makes it of a file, but of other sizes.

    Args:
        folder: Has the file.
        jobs: ``part`` is ComfyUI's name of the text model, ``sizes`` its settings.
        module: Of ``comfy.text_encoders``.
        make: What makes the model's class there.
        tokenizer: The tokenizer's class there.
    """
    import comfy.sd
    import torch
    from safetensors.torch import load_file

    place = importlib.import_module(f"comfy.text_encoders.{module}")
    target = SimpleNamespace(
        params={}, clip=getattr(place, make)(), tokenizer=getattr(place, tokenizer)
    )
    options = {"dtype": torch.float32, f"{jobs['part']}_model_config": jobs["sizes"]}
    state = load_file(folder / "clip.safetensors")
    return comfy.sd.CLIP(target, state_dict=[state], model_options=options)


def encode(session, folder):
    """Every caption by the pack and by ComfyUI's node, and the CLIPs that are refused."""
    import nodes

    jobs = session.jobs
    clip = load_clip(folder, jobs, *jobs["kind"])
    for index, job in enumerate(jobs["texts"]):
        session.text(f"text {index}", jobs["family"], clip, job)
        ((text, _),) = nodes.CLIPTextEncode().encode(clip, job["caption"])[0]
        session.tensors[f"node {index}/text"] = text[0]
    for name, kind in jobs["wrong"].items():
        wrong = load_clip(folder, jobs, *kind)
        session.error(
            name, lambda given=wrong: session.make(jobs["family"], "generate", given, None, None)
        )
    limit = session.make(jobs["family"], "generate", clip, None, 20).text_limit()
    session.facts["counts"] = [limit.count(job["caption"], 0) for job in jobs["texts"]]


def main(folder):
    import torch
    from safetensors.torch import save_file

    encoders = part("nodes.host.family_encoders")
    registry = part("trainer_core.families.registry")
    bases = part("trainer_core.weights.base_location")

    def make(family, variant, *given):
        place = bases.BaseLocation(Path(), Path(), variant, 0, "", False)
        return encoders.graph_encoders(registry.get_family(family), place, *given)

    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    session = Session(make, {}, jobs)
    # As ComfyUI runs every node.
    with torch.inference_mode():
        encode(session, folder)
    tensors = {name: tensor.float().contiguous() for name, tensor in session.tensors.items()}
    save_file(tensors, folder / "results.safetensors")
    (folder / "results.json").write_text(json.dumps(session.facts), encoding="utf-8")


main(Path(sys.argv[1]))
