"""Runs inside ComfyUI's interpreter: load a base and adapters with its own loaders and predict.

Usage: promise_process.py JOBS, with ComfyUI's folder in PYTHONPATH. JOBS is a JSON file with a list
of bases. Each has ``base``, ``inputs`` (noisy, sigma, text, pooled, guidance, reference) and
``result``, files all three, and ``adapters``: (name, file, whether in bypass mode). The result has
the velocities ``NAME/plain`` and ``NAME/with reference``, and in its header, for each name, what
ComfyUI complained of and how many layers are changed; the name ``without`` is the base alone.
"""

import json
import logging
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


class Collector(logging.Handler):
    """All that ComfyUI says louder than for information."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def velocity(base, inputs, references):
    """The velocity, by the conditioning and the model call of ComfyUI's samplers."""
    video = base.latent_format.latent_dimensions == 3
    noisy, reference = (
        inputs[name][:, :, None] if video else inputs[name] for name in ("noisy", "reference")
    )
    given = {
        "noise": noisy,
        "device": noisy.device,
        "cross_attn": inputs["text"],
        "pooled_output": inputs["pooled"],
        "guidance": float(inputs["guidance"]),
    }
    if references:
        given["reference_latents"] = [base.process_latent_out(reference)]
    conditions = {
        name: condition.process_cond(batch_size=1, area=None).cond
        for name, condition in base.extra_conds(**given).items()
    }
    sigma = inputs["sigma"]
    with torch.inference_mode():
        clean = base.apply_model(noisy, sigma, transformer_options={}, **conditions)
        return ((noisy - clean) / sigma).reshape(inputs["noisy"].shape).clone()


def load_adapter(model, path, bypass):
    """The model with an adapter file, by the functions behind ComfyUI's nodes for it."""
    import comfy.sd
    import comfy.utils

    weights = comfy.utils.load_torch_file(path, safe_load=True)
    load = comfy.sd.load_bypass_lora_for_models if bypass else comfy.sd.load_lora_for_models
    return load(model, None, weights, 1.0, 0.0)[0]


def count_changes(patcher):
    """To how many layers, or slices of layers, patches are applied or bypasses are wrapped."""
    wrapped = [
        module
        for module in patcher.model.modules()
        # A bypass that was taken off again leaves the class's own function there.
        if "forward" in vars(module) and module.forward.__func__ is not type(module).forward
    ]
    return len(wrapped) + sum(map(len, patcher.patches.values()))


def measure(patcher, inputs, name):
    """The velocities of a model, and how many of its layers are changed."""
    import comfy.model_management

    comfy.model_management.load_models_gpu([patcher], force_full_load=True)
    found = {
        f"{name}/plain": velocity(patcher.model, inputs, references=False),
        f"{name}/with reference": velocity(patcher.model, inputs, references=True),
    }
    layers = count_changes(patcher)
    comfy.model_management.unload_all_models()
    return found, layers


def run(job, collector):
    import comfy.sd

    inputs = load_file(job["inputs"])
    model = comfy.sd.load_diffusion_model(job["base"], model_options={"dtype": torch.float32})
    tensors, layers = measure(model, inputs, "without")
    assert layers == 0
    facts = {}
    for name, path, bypass in job["adapters"]:
        collector.messages.clear()
        found, layers = measure(load_adapter(model, path, bypass), inputs, name)
        tensors |= found
        facts[name] = {"messages": list(collector.messages), "layers": layers}
    # Each adapter was taken off again, so that none was measured with another.
    again, _ = measure(model, inputs, "without")
    assert all(torch.equal(tensors[key], tensor) for key, tensor in again.items())
    save_file(tensors, job["result"], {"facts": json.dumps(facts)})


def main():
    (jobs_file,) = sys.argv[1:]
    sys.argv = sys.argv[:1]
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    collector = Collector()
    logging.getLogger().addHandler(collector)
    for job in json.loads(Path(jobs_file).read_text(encoding="utf-8")):
        run(job, collector)


if __name__ == "__main__":
    main()
