"""Runs inside ComfyUI's interpreter: what a MODEL carries beside its weights.

``results.json`` of FOLDER gets the fingerprints of a tiny MODEL with changes of its blocks, what is
refused, and what is asked of ComfyUI's memory for a run.
"""

import json
import sys
from pathlib import Path

import torch
from loaded_pack import part


def weakened(strength):
    def patch(q, k, v, extra_options):
        return q * strength, k, v

    return patch


class Scale(torch.nn.Module):
    """A module with a number and a tensor of its own."""

    def __init__(self, strength):
        super().__init__()
        self.strength, self.weight = strength, torch.nn.Parameter(torch.full((3,), strength))


def compiled_block(model):
    block = model.get_model_object("diffusion_model.middle_block")
    model.add_object_patch("diffusion_model.middle_block", torch.compile(block, backend="eager"))


def compiled_in_place(model):
    import comfy.model_management

    compiled_block(model)
    with torch.inference_mode():
        comfy.model_management.load_models_gpu([model])


COMPILED = (lambda model: None, compiled_block, compiled_in_place)


def changed(model, change):
    found = model.clone()
    change(found)
    return found


def said(model):
    try:
        part("nodes.host.graph_model").GraphModel(model)
    except part("trainer_core.errors").InputError as error:
        return [error.found, error.expected, error.remedy]
    return None


def said_of_file(model, name, lora=False, to_train=True, **settings):
    """What is said of a MODEL to train that was loaded from a file of this name."""
    model = model.clone()
    model.cached_patcher_init = (None, (f"/models/{name}.safetensors",))
    if lora:
        model.add_patches({"diffusion_model.out.2.bias": ("diff", (torch.ones(4),))})
    try:
        section = part("trainer_core.config").BaseSection(path="", **settings)
        family = part("nodes.host.graph_family").graph_family(model)
        given = section, family, False
        part("trainer_core.bases.locate").locate_base(*given, to_train=to_train)
    except part("trainer_core.errors").InputError as error:
        return [error.found, error.expected, error.remedy]
    return None


DISTILLED = ("sdxl_lightning_4step_unet", "dmd2_sdxl_4step_unet_fp16", "LCM-SDXL", "wildHyperXL")


def compiled(model):
    """As core's TorchCompileModel leaves it."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    set_torch_compile_wrapper(model=model, backend="eager")


class Dropping(torch.nn.Module):
    """A block that changes its input in place by a call, and drops numbers."""

    def forward(self, x):
        y = torch.nn.functional.dropout(x, 0.5)
        x.addcmul_(y, y)
        return x


def dropped():
    """A step through such a block as it is and protected: result, and what is drawn next."""
    unchanged = part("nodes.host.unchanged_inputs").unchanged_inputs
    holder = torch.nn.Module()
    holder.blocks = torch.nn.ModuleList([Dropping()])
    found = []
    for protected in (False, True):
        torch.manual_seed(3)
        x = torch.rand(4, 5)
        if not protected:
            found.append([holder.blocks[0](x.clone()), torch.rand(3)])
            continue
        with unchanged(holder, ["blocks"]), torch.enable_grad():
            given = x.clone().requires_grad_() * 1
            found.append([holder.blocks[0](given).detach(), torch.rand(3)])
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def main(folder):
    import comfy.patcher_extension
    from tiny_models.denoisers import tiny_model

    with torch.inference_mode():
        model = tiny_model("sdxl")
    graph_model = part("nodes.host.graph_model").GraphModel
    patches = {
        "plain": lambda each: None,
        "half": lambda each: each.set_model_attn1_patch(weakened(0.5)),
        "half again": lambda each: each.set_model_attn1_patch(weakened(0.5)),
        "object": lambda each: each.add_object_patch("diffusion_model.x", Scale(0.5)),
        "object again": lambda each: each.add_object_patch("diffusion_model.x", Scale(0.5)),
        "stronger object": lambda each: each.add_object_patch("diffusion_model.x", Scale(0.7)),
        "other code": lambda each: each.set_model_attn1_patch(lambda q, k, v, _: (q + 1, k, v)),
        "more code": lambda each: each.set_model_attn1_patch(lambda q, k, v, _: (q + 2, k, v)),
        "quarter": lambda each: each.set_model_attn1_patch(weakened(0.25)),
    }
    wrapped = comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL
    around = {
        "cfg function": lambda each: each.set_model_sampler_cfg_function(lambda args: args["cond"]),
        "mask function": lambda each: each.set_model_denoise_mask_function(lambda *_: None),
        "function wrapper": lambda each: each.set_model_unet_function_wrapper(lambda f, a: None),
        "wrapper": lambda each: each.add_wrapper_with_key(wrapped, "cache", lambda run: run),
        "compiled": compiled,
    }
    compiled_blocks = [graph_model(changed(model, each)).fingerprint for each in COMPILED]
    found = {
        "compiled blocks": compiled_blocks,
        "fingerprints": {k: graph_model(changed(model, v)).fingerprint for k, v in patches.items()},
        "refused": {k: said(changed(model, v)) for k, v in around.items()},
        "room": [
            graph_model(model).room(*each) for each in ((1, 512, 4), (1, 1024, 4), (1, 512, 8))
        ],
        "dropped alike": dropped(),
        "distilled": {name: said_of_file(model, name) for name in (*DISTILLED, "juggernautXL_v9")},
        "with its adapter": said_of_file(model, DISTILLED[0], lora=True),
        "as it is": said_of_file(model, DISTILLED[0], distilled="train"),
        "generated with": said_of_file(model, DISTILLED[0], to_train=False),
        "sampling": model.memory_required((1, 4, 64, 64)),
    }
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


main(*map(Path, sys.argv[1:]))
