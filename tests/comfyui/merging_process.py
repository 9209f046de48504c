"""Runs inside ComfyUI's interpreter: the weights of bases as its own loaders and patches make them.

JOBS is a JSON list of (base, adapter or null, strength, result), files all but the strength: the
result has every weight of the denoiser in float32, patched with the adapter as the node Load LoRA
does it, dequantized where it is quantized.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def weights(path, adapter, strength):
    import comfy.model_management
    import comfy.sd
    import comfy.utils
    from comfy.quant_ops import QuantizedTensor

    model = comfy.sd.load_diffusion_model(path, model_options={"dtype": torch.float32})
    if adapter is not None:
        tensors = comfy.utils.load_torch_file(adapter, safe_load=True)
        model = comfy.sd.load_lora_for_models(model, None, tensors, strength, 0.0)[0]
    comfy.model_management.load_models_gpu([model], force_full_load=True)
    found = {}
    for name, weight in model.model.diffusion_model.named_parameters():
        if name.endswith(".input_scale"):
            continue
        if isinstance(weight, QuantizedTensor):
            # As numbers in float32, whatever the layer computes in.
            found[name] = weight._qdata.float() * weight._params.scale.float()
        else:
            found[name] = weight.detach().float()
    found = {name: tensor.clone().contiguous() for name, tensor in found.items()}
    comfy.model_management.unload_all_models()
    return found


def main():
    (jobs_file,) = sys.argv[1:]
    for path, adapter, strength, result in json.loads(Path(jobs_file).read_text(encoding="utf-8")):
        save_file(weights(path, adapter, strength), result)


main()
