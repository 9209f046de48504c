"""Runs inside ComfyUI's interpreter: load single files with ComfyUI's own loader and predict.

Usage: single_file_process.py JOBS, with ComfyUI's folder in PYTHONPATH. JOBS is a JSON file:
``files`` maps a file of weights to the file for its result, ``inputs`` maps a family to a file with
``noisy``, ``sigma``, ``text``, ``pooled``, ``guidance`` and ``reference``. A result has the
velocities without and with the reference, and in its header the model's class and SHA-256 of every
weight, dequantized in float32 and in bfloat16. ``headers`` maps a file with the names and shapes of
tensors to the file for what ComfyUI builds for them, see `own_model`.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def predict(base, inputs, references):
    """The velocity: a call of ComfyUI's denoiser as its samplers make it."""
    noisy, reference = inputs["noisy"], inputs["reference"]
    keywords = {"y": inputs["pooled"], "guidance": inputs["guidance"]}
    if type(base).__name__ == "QwenImage":
        noisy, reference, keywords = noisy[:, :, None], reference[:, :, None], {}
    if references:
        keywords["ref_latents"] = [reference]
    time = base.model_sampling.timestep(inputs["sigma"])
    with torch.no_grad():
        output = base.diffusion_model(
            noisy, time, context=inputs["text"], transformer_options={}, **keywords
        )
    return output.reshape(inputs["noisy"].shape).contiguous()


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
    import comfy.model_base
    import comfy.model_detection
    import comfy.ops

    header = json.loads(Path(path).read_text(encoding="utf-8"))
    state = {
        name: torch.empty(shape, dtype=torch.bfloat16, device="meta")
        for name, shape in header.items()
    }
    config = comfy.model_detection.model_config_from_unet(state, "")
    settings = {k: v for k, v in config.unet_config.items() if k != "disable_unet_model_creation"}
    kinds = {
        "flux": comfy.ldm.flux.model.Flux,
        "qwen_image": comfy.ldm.qwen_image.model.QwenImageTransformer2DModel,
    }
    model = kinds[settings["image_model"]](
        **settings,
        dtype=torch.bfloat16,
        device="meta",
        operations=comfy.ops.disable_weight_init,
    )
    latents = torch.zeros(2, 16, *(1,) * config.latent_format.latent_dimensions)
    latents[1] = 1
    return {
        "layout": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "axes": list(model.pe_embedder.axes_dim),
        "theta": model.pe_embedder.theta,
        "guidance": settings.get("guidance_embed", False),
        "latents": config.latent_format.process_in(latents).flatten(1).tolist(),
    }


def main():
    (jobs_file,) = sys.argv[1:]
    sys.argv = sys.argv[:1]
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import comfy.sd

    jobs = json.loads(Path(jobs_file).read_text(encoding="utf-8"))
    for path, result in jobs["headers"].items():
        Path(result).write_text(json.dumps(own_model(path)), encoding="utf-8")
    for path, (family, result) in jobs["files"].items():
        inputs = load_file(jobs["inputs"][family])
        base = comfy.sd.load_diffusion_model(path, model_options={"dtype": torch.float32}).model
        tensors = {
            "plain": predict(base, inputs, references=False),
            "with reference": predict(base, inputs, references=True),
        }
        header = {
            "kind": type(base).__name__,
            "float32": json.dumps(digests(base.diffusion_model, torch.float32)),
            "bfloat16": json.dumps(digests(base.diffusion_model, torch.bfloat16)),
        }
        save_file(tensors, result, header)
        del base


if __name__ == "__main__":
    main()
