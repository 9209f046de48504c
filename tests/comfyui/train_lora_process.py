"""Runs inside ComfyUI's interpreter: the file that its own Train LoRA node would save.

For each case FOLDER gets ``<case>.safetensors``, with the node's own keys and parameters and random
values for them, and ``<case>.result``, which says what ComfyUI adds to each of its weights when it
loads that file.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from said import Said

WIDTH, TEXT, POOLED = 128, 32, 24
# The node's algorithm, and its "rank", which of a LoKr is the factor: 7 divides FLUX's fused layers
# between their parts, 4 does not.
CASES = {"lora": ("LoRA", 4), "loha": ("LoHa", 4), "lokr": ("LoKr", 7), "lokr odd": ("LoKr", 4)}
_EMBEDDERS = {"time_in": 256, "vector_in": POOLED, "guidance_in": 256}


def shapes():
    """FLUX.1's weights with one block of each kind, one head wide."""
    found = {
        "img_in": (WIDTH, 64),
        "txt_in": (WIDTH, TEXT),
        "final_layer.linear": (64, WIDTH),
        "final_layer.adaLN_modulation.1": (2 * WIDTH, WIDTH),
        "single_blocks.0.linear1": (7 * WIDTH, WIDTH),
        "single_blocks.0.linear2": (WIDTH, 5 * WIDTH),
        "single_blocks.0.modulation.lin": (3 * WIDTH, WIDTH),
    }
    for name, inputs in _EMBEDDERS.items():
        found |= {f"{name}.in_layer": (WIDTH, inputs), f"{name}.out_layer": (WIDTH, WIDTH)}
    for side in ("img", "txt"):
        block = f"double_blocks.0.{side}"
        found |= {
            f"{block}_attn.qkv": (3 * WIDTH, WIDTH),
            f"{block}_attn.proj": (WIDTH, WIDTH),
            f"{block}_mlp.0": (4 * WIDTH, WIDTH),
            f"{block}_mlp.2": (WIDTH, 4 * WIDTH),
            f"{block}_mod.lin": (6 * WIDTH, WIDTH),
        }
    weights = {f"{name}.weight": shape for name, shape in found.items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in found.items()}
    sides = (f"double_blocks.0.{side}_attn" for side in ("img", "txt"))
    norms = {
        f"{place}.norm.{each}_norm.scale": (WIDTH,)
        for place in (*sides, "single_blocks.0")
        for each in ("query", "key")
    }
    return {**weights, **biases, **norms}


def make_model():
    import comfy.model_detection

    weights = {name: torch.zeros(shape) for name, shape in shapes().items()}
    config = comfy.model_detection.model_config_from_unet(weights, "")
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model(weights, "", device="cpu")
    model.load_model_weights(weights, "")
    return model


def train(model, algorithm, rank):
    """What the node returns after its loop, with random values for trained ones."""
    from comfy.model_patcher import ModelPatcher
    from comfy_extras.nodes_train import _setup_lora_adapters

    patcher = ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    parameters, _ = _setup_lora_adapters(patcher, {}, algorithm, torch.float32, rank)
    generator = torch.Generator().manual_seed(0)
    return {
        name: (value if name.endswith(".alpha") else torch.randn(value.shape, generator=generator))
        .detach()
        .contiguous()
        for name, value in parameters.items()
    }


def load(model, path):
    """What ComfyUI adds to each weight; it may say nothing."""
    import comfy.lora

    own = model.state_dict()
    with Said() as said:
        patches = comfy.lora.load_lora(load_file(path), comfy.lora.model_lora_keys_unet(model, {}))
        changes = {
            key: comfy.lora.calculate_weight(
                [(1.0, patch, 1.0, None, None)], torch.zeros_like(own[key]), key
            )
            for key, patch in patches.items()
        }
    assert not said.messages, said.messages
    return changes


def main():
    (folder,) = map(Path, sys.argv[1:])
    model = make_model()
    for case, (algorithm, rank) in CASES.items():
        path = folder / f"{case}.safetensors"
        save_file(train(model, algorithm, rank), path)
        changes = {key: value.contiguous() for key, value in load(model, path).items()}
        save_file(changes, folder / f"{case}.result")


main()
