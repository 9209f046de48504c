"""Runs inside ComfyUI's interpreter: what Base From Model says of models that make no images.

``results.json`` of FOLDER gets, for each of ComfyUI's supported models, its class and the three
parts of an error, or nothing where the model would be trained.
"""

import json
import sys
from pathlib import Path

from loaded_pack import part


def said(supported, **sizes):
    import comfy.model_patcher
    import torch

    errors = part("trainer_core.errors")
    graph_model = part("nodes.host.graph_model")
    # ComfyUI's own model and settings, without the network itself, which is never asked.
    config = supported({**supported.unet_config, "disable_unet_model_creation": True, **sizes})
    model = config.get_model({}, "")
    model.diffusion_model = torch.nn.Identity()
    model.diffusion_model.dtype = torch.float32
    patcher = comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    try:
        graph_model.GraphModel(patcher)
    except errors.InputError as error:
        return type(model).__name__, [error.found, error.expected, error.remedy]
    return type(model).__name__, None


def main(folder):
    import comfy.supported_models

    found = {}
    for supported in comfy.supported_models.models:
        name = supported.__name__
        try:
            found[name] = said(supported)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            # A class that cannot be made without the network.
            found[name] = (repr(error)[:200], "not made")
    for name in ("SDXL", "SD15"):
        kind = getattr(comfy.supported_models, name)
        found[f"{name} inpainting"] = said(kind, in_channels=9)
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


main(*map(Path, sys.argv[1:]))
