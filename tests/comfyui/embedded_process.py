"""Runs inside ComfyUI's interpreter: what it computes with the embedded base that the pack built.

FOLDER has ``jobs.json`` (adapters: name and file; captions, each with a number of control images)
and ``inputs.safetensors`` (``noisy``, ``sigma``, ``text``, ``reference``, ``pixels``, ``latents``,
``controls``); it gets ``results.safetensors`` and ``results.json``.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from loaded_pack import part
from promise_process import load_adapter, measure
from safetensors.torch import load_file, save_file
from said import Said


def predictions(base, jobs, inputs, collector):
    """The velocities of the base, of adapters on it and of a copy, as of promise 1."""
    model, facts = base.embedded_model(), {}
    tensors, _ = measure(model, inputs, "without")
    for name, path in jobs["adapters"]:
        collector.messages.clear()
        found, layers = measure(load_adapter(model, path, False), inputs, name)
        tensors |= found
        facts[name] = {"messages": list(collector.messages), "layers": layers}
    copy = model.clone(force_deepcopy=True)
    assert copy.model is not model.model
    return tensors | measure(copy, inputs, "copy")[0] | measure(model, inputs, "again")[0], facts


def schedule(base):
    """The noise levels of a KSampler that is left as it is."""
    import comfy.samplers

    sampling = base.embedded_model().get_model_object("model_sampling")
    return comfy.samplers.calculate_sigmas(sampling, "simple", 20)


def images(base, inputs):
    """What the VAE makes of pixels `[B, 3, H, W]` in [-1, 1] and of normalised latents."""
    vae, model = base.embedded_vae(), base.embedded_model().model
    still = torch.cat(
        [vae.encode((each[None].movedim(1, -1) + 1) / 2) for each in inputs["pixels"]]
    )
    drawn = vae.decode(model.process_latent_out(inputs["latents"][:, :, None]))
    copied = base.embedded_vae().patcher.clone(force_deepcopy=True)
    assert copied.model is not vae.first_stage_model
    return {
        "encoded": model.process_latent_in(still)[:, :, 0].contiguous(),
        "decoded": drawn[:, 0].movedim(-1, 1).contiguous() * 2 - 1,
    }


def texts(base, service, jobs, inputs):
    """The conditioning of every caption, and its references as the denoiser gets them."""
    model, found = base.embedded_model().model, {}
    for index, (caption, count) in enumerate(jobs["captions"]):
        controls = inputs["controls"][:count] if count else None
        prompts, latents = service.encode_prompts([caption], controls)
        ((text, extra),) = base.conditioning(prompts[0], latents)
        found[f"text {index}"] = text[0].clone()
        references = extra.get("reference_latents", [])
        assert len(references) == count
        for place, each in enumerate(references):
            found[f"reference {index} {place}"] = model.process_latent_in(each)[0, :, 0].clone()
    gc.collect()
    kinds = {type(each).__name__ for each in gc.get_objects() if isinstance(each, torch.nn.Module)}
    assert not [name for name in kinds if "Qwen2_5" in name or "Autoencoder" in name]
    return found


def main():
    folder = Path(sys.argv[1])
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    inputs = load_file(folder / "inputs.safetensors")
    inputs["given/cross_attn"] = inputs["text"]
    inputs["controls/reference_latents/0"] = inputs["reference"]
    base, service = part("nodes.host.embedded_base"), part("nodes.services.embedded_text")
    collector = Said()
    # As ComfyUI calls a node.
    with torch.inference_mode():
        tensors, facts = predictions(base, jobs, inputs, collector)
        tensors |= images(base, inputs) | texts(base, service, jobs, inputs)
        tensors["sigmas"] = schedule(base)
        save_file({name: each.clone() for name, each in tensors.items()}, folder / "results")
    (folder / "results.json").write_text(json.dumps(facts), encoding="utf-8")


main()
