"""Runs inside ComfyUI's interpreter: CLIP-L and CLIP-G trained beside tiny MODELs of the graph.

Arguments: FOLDER WORDS. WORDS is a file of JSON: for each MODEL what is done with it, ``encoded``
and ``trained``. FOLDER gets ``results.json``: what was found.
"""

import contextlib
import hashlib
import json
import sys
from pathlib import Path

from graph_model_process import as_latents, losses, marks, sampled_by_comfyui, write_image
from loaded_pack import part
from said import Said

CAPTIONS = ["a red diamond", "", "a (red:1.3) cube", "a very long river, " * 40]
GUIDANCE, STEPS = 2.0, 4
SKIPPED = {"sd15": -2, "sdxl": -3}
TEXT = {"text_encoder": {"train": True, "rank": 4, "learning_rate": 2e-3}}


def run_config(folder, images, side, name, **training):
    """A run of few steps; its start is written with the others, so that every step is the same."""
    from graph_model_process import run_config as usual

    job = {
        "name": name,
        "kind": "lora",
        "steps": training.pop("steps", STEPS),
        "guidance": GUIDANCE,
        "checkpointing": False,
        "adapter": {"targets": "attention"},
        "training": {**TEXT, "checkpoint_every": 0, **training},
        "output": {"layouts": ["comfyui", "kohya", "diffusers"]},
    }
    config = usual(folder, job, side, "graph_model")
    dataset = config.dataset.model_copy(update={"path": str(images)})
    return config.model_copy(update={"dataset": dataset})


def clip_marks(clip):
    """What of a CLIP must be as before: its weights, modules, classes and hooks."""
    digest = hashlib.sha256()
    for name, tensor in sorted(clip.cond_stage_model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    modules = {
        name: (id(each), type(each).__qualname__, each.training, sorted(vars(each)))
        for name, each in clip.cond_stage_model.named_modules()
    }
    hooks = [len(each._forward_hooks) for each in clip.cond_stage_model.modules()]
    grads = [each.requires_grad for each in clip.cond_stage_model.parameters()]
    return digest.hexdigest(), modules, hooks, grads, sorted(clip.patcher.patches)


def conditionings(clip):
    """Largest difference of what a step encodes from CLIPTextEncode; layers without a gradient."""
    import torch

    import nodes

    theirs = [nodes.CLIPTextEncode().encode(clip, caption)[0] for caption in CAPTIONS]
    text = part("nodes.host.trained_text").graph_text(clip)
    attach, config = part("trainer_core.adapters").attach, part("trainer_core.config")
    targets = part("trainer_core.adapter_files.names.text_encoder_names").TARGETS
    denoiser, differing = torch.nn.Module(), 0.0
    with torch.inference_mode(False), contextlib.ExitStack() as at_end:
        text.join(denoiser, at_end)
        settings = config.RunConfig.model_validate({"adapter": {"kind": "lora", "rank": 4}})
        adapter = attach(denoiser, settings.adapter, [targets])
        at_end.callback(adapter.detach)
        for caption, ((cond, more),) in zip(CAPTIONS, theirs, strict=True):
            for grad in (torch.no_grad, torch.enable_grad):
                with grad():
                    ours = text.encode(text.tokens(caption), torch.device("cpu"))
                pooled = more["pooled_output"]
                assert set(ours) == {"cross_attn", *more}
                for one, other in ((ours["cross_attn"], cond), (ours["pooled_output"], pooled)):
                    differing = max(differing, float((one - other).detach().abs().max()))
        with torch.enable_grad():
            read(text, CAPTIONS[3]).backward()
        # At first the ups are 0, so that only these have a gradient.
        ups = {n: p.grad for n, p in adapter.named_parameters() if "up" in n}
        idle = [n for n, grad in ups.items() if grad is None or not grad.abs().max() > 0]
        names = list(adapter.names)
        with torch.enable_grad():
            wrong = gradient_error(text, adapter)
    return {"differing": differing, "idle": idle, "names": names, "gradient_error": wrong}


def read(text, caption):
    """One number of all that the denoiser reads of a text."""
    import torch

    found = text.encode(text.tokens(caption), torch.device("cpu"))
    whole = (found["cross_attn"].double() ** 2).sum()
    return whole + (found["pooled_output"].double() ** 2).sum() if text.whole else whole


def encoded(name, clip):
    before, skipped = clip_marks(clip), clip.clone()
    found = conditionings(clip)
    skipped.clip_layer(SKIPPED[name])
    return found | {"skipped": conditionings(skipped), "clip_kept": clip_marks(clip) == before}


def gradient_error(text, adapter):
    """Relative error of the gradient along one direction, by central differences in float32."""
    import torch

    def loss():
        return read(text, CAPTIONS[2])

    with torch.no_grad():
        for number, each in enumerate(adapter.parameters()):
            generator = torch.Generator().manual_seed(number)
            each.copy_(torch.randn(each.shape, generator=generator) / 8)
            each.grad = None
    loss().backward()
    parameters = adapter.parameters()
    along = [each.grad.clone() for each in parameters]
    expected = sum(float((each.double() ** 2).sum()) for each in along)
    size = 1e-3 / expected**0.5
    sides = []
    with torch.no_grad():
        for sign in (1, -2):
            for each, way in zip(parameters, along, strict=True):
                each.add_(way, alpha=sign * size)
            sides.append(float(loss()))
    return abs((sides[0] - sides[1]) / (2 * size) - expected) / expected


def names_of_clip(clip):
    import comfy.lora

    return comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {})


def put_on_both(model, clip, file):
    """Model and CLIP with a file on them by Load LoRA, and what it did not load."""
    import comfy.sd
    import comfy.utils

    with Said() as said:
        tensors = comfy.utils.load_torch_file(str(file), safe_load=True)
        on_model, on_clip = comfy.sd.load_lora_for_models(model, clip, tensors, 1.0, 1.0)
    return on_model, on_clip, said.unread()


def files_of(result, tensors):
    """Of each layout: how many keys of text encoders there are, and two of them."""
    found = {}
    for file in result.adapters:
        keys = [key for key in tensors(str(file)) if "lora_te" in key or "text_encoder" in key]
        found[file.name] = [len(keys), min(keys), max(keys)]
    return found


def trained(folder, side, name, model, clip, vae):
    import comfy.utils
    import torch
    from tiny_models.weights import weights_hash

    family_of = part("nodes.host.graph_family")
    pipeline = part("trainer_core.inference.pipeline")
    source = family_of.encoders_of(model, clip, vae)
    # ComfyUI marks modules when it first loads them.
    plain = sampled_by_comfyui(model, clip, side, GUIDANCE, False)
    before = weights_hash(model), marks(model), clip_marks(clip)
    config = run_config(folder, folder.parent / "images", side, name)
    family = family_of.graph_family(model, clip)
    result = part("trainer_core.training").train(config, make_source=source, family=family)
    found = {
        "losses": losses(result.folder),
        "files": files_of(result, comfy.utils.load_torch_file),
    }
    on_model, on_clip, found["unread"], found["patches"] = model, clip, {}, {}
    for file in reversed(result.adapters):
        on_model, on_clip, unread = put_on_both(model, clip, file)
        found["unread"][file.name] = unread
        found["patches"][file.name] = len(on_clip.patcher.patches)
    given = (lambda f, location: as_latents(source(f, location)),)

    def drawn(strength, file=result.adapters[0]):
        with torch.inference_mode(False), torch.no_grad():
            own = family_of.graph_family(model, clip)
            made = pipeline.sample_prompts(config, file, strength, *given, family=own)
            with contextlib.closing(made):
                return next(made)

    ours, off = drawn(1.0), drawn(0.0)
    found["kept"] = (weights_hash(model), marks(model), clip_marks(clip)) == before
    theirs = sampled_by_comfyui(on_model, on_clip, side, GUIDANCE, False).reshape(ours.shape)
    alone = sampled_by_comfyui(on_model, clip, side, GUIDANCE, False).reshape(ours.shape)
    plain = plain.reshape(ours.shape)
    found["sample_error"] = float((ours - theirs).abs().max() / theirs.abs().max())
    found["off_error"] = float((off - plain).abs().max() / plain.abs().max())
    found["clips_share"] = float((alone - theirs).norm() / theirs.norm())
    return found


def refused(clip):
    errors = part("trainer_core.errors")
    try:
        part("nodes.host.trained_text").require_trainable_text(clip)
    except errors.InputError as error:
        return [error.found, error.expected, error.remedy]
    return []


def main(folder, words):
    import comfy.utils
    import torch
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    comfy.utils.PROGRESS_BAR_ENABLED = False
    torch.set_num_threads(1)
    found = {"refused": {}}
    for name, wanted in json.loads(words.read_text(encoding="utf-8")).items():
        sizes, place = TINY[name], folder / name
        write_image(place / "images", sizes.pixels)
        with torch.inference_mode():
            model, clip, vae = tiny_model(name), tiny_clip(sizes.text), tiny_vae(sizes.vae)
            facts = found[name] = {"clip_names": sorted(names_of_clip(clip))}
            if "encoded" in wanted:
                facts |= encoded(name, clip)
            if "trained" in wanted:
                given = (place / "trained", sizes.pixels, name, model, clip, vae)
                facts |= trained(*given)
    with torch.inference_mode():
        for name in ("flux", "sd3"):
            found["refused"][name] = refused(tiny_clip(name))
        found["refused"]["none"] = refused(None)
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


main(*map(Path, sys.argv[1:]))
