"""Runs inside ComfyUI's interpreter: load single files with ComfyUI's own loader and predict.

JOBS is a JSON file. ``families`` maps a family to its ``inputs`` and ``sizes`` (`promise_process`),
its ``files`` (a file of weights to the file for its result) and ``plain``, a file whose names are
looked at. A result has the velocities without and with control images, and in its header the
model's class, SHA-256 of every weight, dequantized in float32 and in bfloat16, and what ComfyUI
calls each. ``headers`` maps a file with the names and shapes of tensors to the file for what
ComfyUI builds for them, see `own_model`.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from promise_process import has_controls, small_model, velocity
from safetensors.torch import load_file, save_file


def digests(denoiser, dtype):
    """SHA-256 of every weight as ComfyUI's layers see it when they compute in this dtype."""
    import comfy_kitchen
    from comfy.quant_ops import QuantizedTensor

    found = {}
    for name, weight in denoiser.named_parameters():
        if name.endswith(".input_scale"):
            continue
        if isinstance(weight, QuantizedTensor):
            scale = weight._params.scale
            value = comfy_kitchen.dequantize_per_tensor_fp8(weight._qdata, scale, dtype)
            same = weight.dequantize().dtype != dtype or torch.equal(value, weight.dequantize())
            assert same, name
        else:
            value = weight.to(dtype)
        content = value.detach().contiguous().view(torch.uint8).numpy()
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def own_model(path):
    """What ComfyUI builds for a file: names and shapes, settings that no shape shows, and what it
    makes of latents that are all 0 and all 1. No weight is made.
    """
    import comfy.model_detection

    header = json.loads(Path(path).read_text(encoding="utf-8"))
    state = {
        name: torch.empty(shape, dtype=torch.bfloat16, device="meta")
        for name, shape in header.items()
    }
    config = comfy.model_detection.model_config_from_unet(state, "")
    config.set_inference_dtype(torch.bfloat16, None)
    base = config.get_model(state, "", device="meta")
    model = base.diffusion_model
    latents = torch.zeros(
        2, config.latent_format.latent_channels, *(1,) * config.latent_format.latent_dimensions
    )
    latents[1] = 1
    built = config.process_unet_state_dict(dict(state))
    positions = getattr(model, "pe_embedder", None) or getattr(model, "rope_embedder", None)
    return {
        "kind": type(base).__name__,
        "file": {name: list(tensor.shape) for name, tensor in built.items()},
        "layout": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "axes": list(getattr(positions, "axes_dim", None) or getattr(positions, "axes_dims", [])),
        "theta": getattr(positions, "theta", None),
        "guidance": config.unet_config.get("guidance_embed", False),
        "latents": config.latent_format.process_in(latents).flatten(1).tolist(),
    }


def parameter_names(base, path):
    """Name of a tensor in a file to that of ComfyUI's parameter that it becomes as it is."""
    state = load_file(path)
    built = base.model_config.process_unet_state_dict(dict(state))
    places = {id(tensor): name for name, tensor in built.items()}
    return {name: places[id(tensor)] for name, tensor in state.items() if id(tensor) in places}


def main():
    (jobs_file,) = sys.argv[1:]
    import comfy.sd

    jobs = json.loads(Path(jobs_file).read_text(encoding="utf-8"))
    for path, result in jobs["headers"].items():
        Path(result).write_text(json.dumps(own_model(path)), encoding="utf-8")
    for job in jobs["families"].values():
        inputs = load_file(job["inputs"])
        for path, result in job["files"].items():
            with small_model(job["sizes"]):
                base = comfy.sd.load_diffusion_model(
                    path, model_options={"dtype": torch.float32}
                ).model
            tensors = {"plain": velocity(base, inputs, controls=False)}
            if has_controls(inputs):
                tensors["with reference"] = velocity(base, inputs, controls=True)
            header = {
                "kind": type(base).__name__,
                "float32": json.dumps(digests(base.diffusion_model, torch.float32)),
                "bfloat16": json.dumps(digests(base.diffusion_model, torch.bfloat16)),
                "names": json.dumps(parameter_names(base, job["plain"])),
            }
            save_file(tensors, result, header)
            del base


main()
