"""Runs inside ComfyUI's interpreter: tiny MODELs are trained as Base From Model has them trained.

Arguments: FOLDER JOBS. JOBS is a JSON list of ``{"model", "kind", ...}``; FOLDER gets
``results.json``: what was found for each.
"""

import dataclasses
import json
import sys
import traceback
from pathlib import Path

from clip_files import write_clip
from loaded_pack import part
from said import Said

CAPTION, NEGATIVE, SEED, DRAWN = "a red diamond", "", 7, 3


def write_image(folder, side, count=1):
    import numpy
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        coarse = numpy.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        image.save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(CAPTION, encoding="utf-8")


def run_config(folder, job, side, family):
    values = {
        "family": family,
        "base": job.get("base", {}),
        "dataset": {
            "path": str(folder / "images"),
            "resolution": side,
            "frames": job.get("frames", 33),
            **job.get("dataset", {}),
        },
        "adapter": {"kind": job["kind"], "rank": 4, **job.get("adapter", {})},
        "training": {
            "steps": job.get("steps", 20),
            "optimizer": {"learning_rate": job.get("rate", 2e-3)},
            "schedule": {"warmup_steps": 0},
            # So that losses differ by what was learned, and not by the noise that was drawn.
            "sigma": {"density": "uniform", "min": 0.45, "max": 0.55},
            "precision": "fp32",
            **job.get("training", {}),
        },
        "preview": {
            "prompts": [CAPTION],
            "every": 0,
            "width": side,
            "height": side,
            "steps": DRAWN,
            "guidance": job.get("guidance", 1.0),
            "seed": SEED,
            "frames": job.get("frames"),
            "controls": job.get("begin", []),
        },
        "memory": {"device": "cpu", "gradient_checkpointing": job.get("checkpointing", True)},
        "output": {"dir": str(folder / "output"), "name": job["name"], **job.get("output", {})},
        "cache": {"dir": str(folder / "cache")},
    }
    return part("trainer_core.families.run_files").load_config(values)


def as_latents(encoders):
    """A source whose decoder gives the latents themselves."""

    @dataclasses.dataclass(eq=False)
    class Latents(type(encoders)):
        def decoder(self):
            return lambda latents: latents

    values = {each.name: getattr(encoders, each.name) for each in dataclasses.fields(encoders)}
    return Latents(**values)


def sampled_by_comfyui(model, clip, side, guidance, straight_guidance, frames=1, begin=None):
    """The latents of KSampler with euler and simple, as the model has them (normalised).

    Args:
        begin: From positive and negative conditioning and the empty latent to those of a clip that
            begins with an image, and to what becomes of the samples.
    """
    import torch

    import nodes

    positive = nodes.CLIPTextEncode().encode(clip, CAPTION)[0]
    if straight_guidance:
        positive = [[each[0], {**each[1], "guidance": guidance}] for each in positive]
        scale = 1.0
    else:
        scale = guidance
    negative = nodes.CLIPTextEncode().encode(clip, NEGATIVE)[0]
    found = model.model.latent_format
    small = side // found.spacial_downscale_ratio
    deep = (frames - 1) // found.temporal_downscale_ratio + 1
    shape = [1, found.latent_channels, *[deep] * (found.latent_dimensions - 2), small, small]
    latent = {"samples": torch.zeros(shape)}
    finish = None
    if begin is not None:
        positive, negative, latent, finish = begin(positive, negative, latent)
    words = (SEED, DRAWN, scale, "euler", "simple", positive, negative, latent, 1.0)
    samples = nodes.common_ksampler(model, *words)[0]["samples"]
    samples = samples.unbind()[0] if samples.is_nested else samples
    return model.model.process_latent_in(finish(samples) if finish else samples)


def as_frozen(config):
    """The same run with an adapter that stays at zero, and the same noise in each step."""
    training = config.training
    optimizer = training.optimizer.model_copy(update={"learning_rate": 1e-30})
    return config.model_copy(
        update={
            "training": training.model_copy(update={"optimizer": optimizer}),
            "preview": config.preview.model_copy(update={"prompts": []}),
            "output": config.output.model_copy(update={"name": f"{config.output.name}_frozen"}),
        }
    )


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def loaded(model, file):
    """The model with the file on it by ComfyUI's own loader, and what it did not load."""
    import comfy.sd
    import comfy.utils

    with Said() as said:
        tensors = comfy.utils.load_torch_file(str(file), safe_load=True)
        patched, _ = comfy.sd.load_lora_for_models(model, None, tensors, 1.0, 0.0)
    return patched, said.unread()


def marks(model):
    """What of a model must be as before: its modules, hooks and flags."""
    import comfy.model_management

    modules = {
        name: (id(each), len(each._forward_hooks), len(each._forward_pre_hooks), each.training)
        for name, each in model.model.named_modules()
    }
    own = {name: sorted(vars(each)) for name, each in model.model.named_modules()}
    sampling = id(model.get_model_object("model_sampling"))
    return modules, own, sampling, comfy.model_management.in_training, sorted(model.patches)


def changed(before, after):
    """What of a model is not as before, in words."""
    found = []
    for one, other in zip(before, after, strict=True):
        if isinstance(one, dict):
            names = (name for name, each in one.items() if each != other.get(name))
            found += [f"{name}: {one[name]} {other.get(name)}" for name in names]
        elif one != other:
            found.append(f"{one} {other}")
    return found[:5]


def longest_clip(config, family, source):
    """The frames that a step's room is reckoned with, of the finished cache of a run."""
    import torch

    encoding = part("trainer_core.training.prepare.encode_dataset")
    observer = part("trainer_core.training.observer").SilentObserver()
    alone = part("trainer_core.training").SingleProcess(torch.device("cpu"))
    with torch.inference_mode(False):
        prepared = encoding.prepare(config, observer, alone, source, family=family)
        manifest = str(encoding.save_manifest(config, prepared))
    cache = config.cache.model_copy(update={"manifest": manifest})
    finished = config.model_copy(update={"cache": cache})
    return part("nodes.services.graph_run")._longest_clip(finished)


def trained(folder, job, model, clip, vae, vision=None, begin=None, audio=None):
    family_of = part("nodes.host.graph_family")
    train = part("trainer_core.training").train
    pipeline = part("trainer_core.inference.pipeline")
    from tiny_models.weights import weights_hash

    side = job["side"]
    family = family_of.graph_family(model, audio=audio)
    config = run_config(folder, job, side, family.name)
    rate = config.dataset.fps
    source = family_of.encoders_of(model, clip, vae, vision=vision, rate=rate, audio=audio)
    guidance, guided = job.get("guidance", 1.0), family.prediction.takes_guidance(None)
    frames = job.get("frames", 1)
    # ComfyUI itself adds to a model's ops when it first loads it.
    bare = sampled_by_comfyui(model, clip, side, guidance, guided, frames, begin)
    before = weights_hash(model), *marks(model)
    result = train(config, make_source=source, family=family)
    frozen = train(as_frozen(config), make_source=source, family=family)
    after = weights_hash(model), *marks(model)
    found = {
        "losses": losses(result.folder),
        "frozen": losses(frozen.folder),
        "status": result.status,
        "changed": changed(before, after),
    }
    if frames > 1:
        grid = family.clips
        both = [(grid.latent_frames(n), vae.downscale_ratio[0](n)) for n in grid.lengths(121)]
        both += [(grid.frames_of(ours), vae.upscale_ratio[0](ours)) for ours, _ in both]
        found["grid"] = [pair for pair in both if pair[0] != pair[1]]
        found["rate"] = grid.rate
        room = part("nodes.host.graph_model").GraphModel(model).room
        found["room"] = [room(1, side, 4, count) for count in (1, frames, 10 * frames)]
        found["longest"] = longest_clip(config, family, source)
    import torch

    with torch.inference_mode(False), torch.no_grad():
        given = (lambda f, location: as_latents(source(f, location)),)
        (own,) = pipeline.sample_prompts(
            config,
            result.adapters[0],
            1.0,
            *given,
            family=family_of.graph_family(model, audio=audio),
        )
        (plain,) = pipeline.sample_prompts(
            config, None, 1.0, *given, family=family_of.graph_family(model, audio=audio)
        )
    found["changed"] += changed(before, (weights_hash(model), *marks(model)))
    with part("trainer_core.tensors.safetensors_reader").open_tensors(result.adapters[0]) as file:
        found["layers"] = sum(name.endswith(".alpha") for name in file.tensors)
    patched, found["unread"] = loaded(model, result.adapters[0])
    found["patches"] = len(patched.patches)
    asked = clip, side, guidance, guided, frames, begin
    theirs = sampled_by_comfyui(patched, *asked).reshape(own.shape)
    bare = bare.reshape(own.shape)
    after = sampled_by_comfyui(model, *asked).reshape(own.shape)
    found["same_after"] = bool(torch.equal(bare, after))
    found["sample_error"] = float((own - theirs).abs().max() / theirs.abs().max())
    found["base_error"] = float((plain - bare).abs().max() / bare.abs().max())
    found["change"] = float((theirs - bare).norm() / bare.norm())
    return found


def write_found(folder, jobs, look):
    """Write what is found for each job by its name, or its error; the others go on.

    Args:
        folder: It gets ``results.json``.
        jobs: Name to what `look` is called with.
        look: Gives what is found.
    """
    import comfy.utils
    import torch

    comfy.utils.PROGRESS_BAR_ENABLED = False
    torch.set_num_threads(1)
    found = {}
    for name, given in jobs.items():
        try:
            # As ComfyUI runs every node.
            with torch.inference_mode():
                found[name] = look(*given)
        except Exception as error:  # noqa: BLE001 - the test tells
            traceback.print_exc()
            found[name] = {"error": repr(error)}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def of_tiny_model(folder, job):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    sizes, place = TINY[job["model"]], folder / job["model"]
    if "frames" in job:
        write_clip(place / "images", sizes.pixels, 2 * job["frames"], job["fps"], caption=CAPTION)
    else:
        write_image(place / "images", sizes.pixels)
    model = tiny_model(job["model"], 0, job.get("precision", "fp32"))
    job |= {"side": sizes.pixels}
    return trained(place, job, model, tiny_clip(sizes.text), tiny_vae(sizes.vae))


def main(folder, jobs):
    wanted = {}
    for job in json.loads(jobs.read_text(encoding="utf-8")):
        job.setdefault("name", f"{job['model']}_{job['kind']}")
        wanted[job["name"]] = (folder, job)
    write_found(folder, wanted, of_tiny_model)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
