"""Runs inside ComfyUI's interpreter: load a base and adapters with its own loaders and predict.

JOBS is a JSON file with a list of bases. Each has ``base``, ``inputs`` and ``result``, files all
three, ``sizes`` (`small_model`) and ``adapters``: (name, file, whether in bypass mode). The inputs
are ``noisy``, ``sigma``, ``guidance``, ``given/NAME`` and ``controls/NAME`` or ``controls/NAME/0``
and on. The result has the velocities ``NAME/plain`` and ``NAME/with reference``, and in its header,
for each name, what ComfyUI complained of and how many layers are changed; the name ``without`` is
the base alone.
"""

import contextlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from said import Said


def velocity(base, inputs, controls):
    """The velocity, by the conditioning and the model call of ComfyUI's samplers."""
    noisy, sigma = lifted(base, inputs["noisy"]), inputs["sigma"]
    conditions = {
        name: condition.process_cond(batch_size=1, area=None).cond
        for name, condition in base.extra_conds(**given(base, inputs, controls)).items()
    }
    with torch.inference_mode():
        clean = base.apply_model(noisy, sigma, transformer_options={}, **conditions)
        return ((noisy - clean) / sigma).reshape(inputs["noisy"].shape).clone()


def given(base, inputs, controls):
    """What ComfyUI's model makes its conditions of, with or without the control images."""
    noisy = lifted(base, inputs["noisy"])
    found = {"noise": noisy, "device": noisy.device, "guidance": float(inputs["guidance"])}
    for key, tensor in inputs.items():
        part, _, name = key.partition("/")
        name, _, place = name.partition("/")
        if part == "given":
            found[name] = tensor
        elif part == "controls" and controls:
            tensor = lifted(base, tensor)
            if name.startswith("reference_latents"):
                tensor = base.process_latent_out(tensor)
            found[name] = [*found.get(name, []), tensor] if place else tensor
    return found


def lifted(base, latents):
    """Latents with an axis for frames, where ComfyUI's model has one."""
    video = base.latent_format.latent_dimensions == 3 and latents.ndim == 4
    return latents[:, :, None] if video else latents


def has_controls(inputs):
    """Whether there are control images beside the text."""
    return any(key.startswith("controls/") for key in inputs)


@contextlib.contextmanager
def small_model(settings):
    """Let ComfyUI build models of other sizes than those that its detection takes for granted.

    Args:
        settings: ``matched`` are given to the table of its models, ``detected`` to the model.
    """
    import comfy.model_detection as detection

    detect, configure = detection.detect_unet_config, detection.model_config_from_unet

    def detect_small(*args, **options):
        found = detect(*args, **options)
        return found if found is None else {**found, **settings["matched"]}

    def configure_small(*args, **options):
        found = configure(*args, **options)
        if found is not None:
            found.unet_config.update(settings["detected"])
        return found

    detection.detect_unet_config = detect_small
    detection.model_config_from_unet = configure_small
    try:
        yield
    finally:
        detection.detect_unet_config = detect
        detection.model_config_from_unet = configure


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
    found = {f"{name}/plain": velocity(patcher.model, inputs, controls=False)}
    if has_controls(inputs):
        found[f"{name}/with reference"] = velocity(patcher.model, inputs, controls=True)
    layers = count_changes(patcher)
    comfy.model_management.unload_all_models()
    return found, layers


def run(job, collector):
    import comfy.sd

    inputs = load_file(job["inputs"])
    with small_model(job["sizes"]):
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
    collector = Said()
    for job in json.loads(Path(jobs_file).read_text(encoding="utf-8")):
        run(job, collector)


if __name__ == "__main__":
    main()
