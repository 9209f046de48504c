"""Runs inside ComfyUI's interpreter: clips that begin with an image, beside ComfyUI's own nodes.

Arguments: FOLDER JOBS. JOBS is a JSON list of ``{"model", "ends", ...}``; FOLDER gets
``results.json``: what was found for each.
"""

import contextlib
import json
import sys
from pathlib import Path

import numpy
import torch
from clip_files import write_clip
from graph_model_process import CAPTION, NEGATIVE, trained, write_found
from graph_predict_process import apart
from loaded_pack import part
from PIL import Image

SIGMA, LATENT_FRAMES = 0.7, 5


def core_node(model, vae, vision, frames, ends, positive, negative):
    """What ComfyUI's own node gives KSampler, and what becomes of its samples."""
    from comfy_extras import nodes_cosmos, nodes_hunyuan, nodes_kandinsky5, nodes_lt, nodes_wan

    import nodes

    count, _, high, wide = frames.shape
    images = (frames.movedim(1, -1).float() / 255).split(1)
    start, end = images[0], images[-1]
    sizes = {"width": wide, "height": high, "length": count, "batch_size": 1}
    both = {"positive": positive, "negative": negative, "vae": vae, **sizes}
    seen = [
        nodes.CLIPVisionEncode().encode(vision, each, "none")[0]
        for each in ((start, end) if ends else (start,))
        if vision is not None
    ]
    kind = type(model.model).__name__
    if kind == "WAN22":
        (latent,) = nodes_wan.Wan22ImageToVideoLatent.execute(vae, **sizes, start_image=start).args
        return positive, negative, latent, None
    if kind == "CosmosPredict2":
        node = nodes_cosmos.CosmosPredict2ImageToVideoLatent
        (latent,) = node.execute(vae, **sizes, start_image=start).args
        return positive, negative, latent, None
    if kind in ("LTXV", "LTXAV"):
        found = nodes_lt.LTXVImgToVideo.execute(**both, image=start, strength=1.0)
        return *found.args, None
    if kind == "Kandinsky5":
        node = nodes_kandinsky5.Kandinsky5ImageToVideo
        *found, clean = node.execute(**both, start_image=start).args
        return *found, lambda samples: torch.cat([clean["samples"], samples[:, :, 1:]], 2)
    if kind == "HunyuanVideo15":
        node = nodes_hunyuan.HunyuanVideo15ImageToVideo
        more = {"clip_vision_output": seen[0]}
    elif ends:
        node = nodes_wan.WanFirstLastFrameToVideo
        more = {"end_image": end}
        names = ("clip_vision_start_image", "clip_vision_end_image")
        more |= dict(zip(names, seen, strict=False))
    else:
        node = nodes_wan.WanImageToVideo
        more = {"clip_vision_output": seen[0]} if seen else {}
    return *node.execute(**both, start_image=start, **more).args, None


def differing(ours, theirs):
    """Names of the entries that are not the same to the last bit."""
    found = sorted(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        one, other = ours[name], theirs[name]
        if name == "clip_vision_output":
            field = next(iter(vars(one)))
            one, other = one[field], other[field]
        if one.shape != other.shape or not torch.equal(one, other):
            found.append(name)
    return found


class Own:
    """A step of ComfyUI's sampler with a mask of what is noise."""

    def __init__(self, model):
        import comfy.model_management

        self.model = model.clone()
        comfy.model_management.load_models_gpu([self.model])
        self.model.pre_run()

    def denoised(self, positive, latent, x, level):
        from comfy import sampler_helpers, samplers

        model = self.model.model
        image = latent["samples"]
        if torch.count_nonzero(image):
            image = model.process_latent_in(image)
        mask = latent.get("noise_mask")
        if mask is not None:
            mask = sampler_helpers.prepare_mask(mask, x.shape, x.device)
        conds = {"positive": sampler_helpers.convert_cond(positive)}
        found = samplers.process_conds(
            model, x, conds, x.device, image, mask, seed=0, latent_shapes=[x.shape]
        )

        class Inner:
            inner_model = model

            def __call__(self, x, sigma, model_options, seed):
                options = {"transformer_options": {"sample_sigmas": sigma}}
                cond = [found["positive"]]
                return samplers.calc_cond_batch(model, cond, x, sigma, options)[0]

        step = samplers.KSamplerX0Inpaint(Inner(), level)
        step.latent_image, step.noise = image, x
        return step(x, level, mask)

    def close(self):
        self.model.cleanup()


def losses_of(family, item, output, noisy_points, batches):
    """Gradient of the loss by the output, and what each place weighs."""
    from types import SimpleNamespace

    losses = part("trainer_core.diffusion.losses")
    points = noisy_points(
        batches.make_batch([item], (0,)), (SIGMA,), torch.zeros_like(item.latents)[None]
    )
    given = SimpleNamespace(output=output.detach().requires_grad_())
    level = torch.tensor([SIGMA])
    total, _ = losses.FlowLoss()(given.output, points.target, level, points.masks)
    total.sum().backward()
    error = (given.output - points.target).detach()
    plain, first = error.square().mean(), error[:, :, 1:].square().mean()
    grad = given.output.grad.abs().amax(dim=(0, 1, 3, 4))
    return grad.tolist(), float(total.detach()), float(plain), float(first)


def told(rate, positive, negative):
    """Both sides with the frames per second beside the texts; as they are without a number."""
    from comfy_extras import nodes_lt

    if rate is None:
        return positive, negative
    return nodes_lt.LTXVConditioning.execute(positive, negative, rate).args


def compared(model, clip, vae, vision, frames, ends, rate=None):
    import nodes

    family_of = part("nodes.host.graph_family")
    cached = part("trainer_core.types").CachedSample
    bucket = part("trainer_core.types").Bucket
    batches = part("trainer_core.data.load_batch")
    noisy_points = part("trainer_core.training.step.micro_batch").noisy_points
    starts = part("nodes.host.start_frames")
    encode_endpoints = part("trainer_core.data.cache.encoder_protocols").encode_endpoints
    family = family_of.graph_family(model)
    base = part("trainer_core.config").BaseSection()
    locate = part("trainer_core.bases.locate").locate_base
    location = locate(base, family, False, to_train=False)
    make = family_of.encoders_of(model, clip, vae, vision=vision, rate=rate)
    encoders = make(family, location)
    last = frames[-1] if ends else None
    given = encode_endpoints(encoders, frames[0], last, len(frames))
    clean = next((given.pop(name) for name in list(given) if name.endswith("clean")), None)
    text = encoders.encode_text(CAPTION)
    latents = encoders.encode_clip(frames)
    shape = latents[None].shape
    found = {"latent frames": shape[2], "clean": None if clean is None else clean.tolist()}
    with torch.inference_mode():
        sides = [nodes.CLIPTextEncode().encode(clip, each)[0] for each in (CAPTION, NEGATIVE)]
        sides = told(rate, *sides)
        empty = torch.zeros(shape)
        core = core_node(model, vae, vision, frames, ends, *sides)
        positive, negative, latent, finish = core
        ours = starts.endpoint_inputs(model.model, given, shape)
        known = sides[0][0][1]
        theirs = {k: v for k, v in positive[0][1].items() if k not in known}
        found["entries"] = differing(ours.entries, theirs)
        other = {k: v for k, v in negative[0][1].items() if k not in sides[1][0][1]}
        found["negative"] = differing(ours.entries, other)
        if "noise_mask" in latent:
            pair = {"samples": ours.samples, "noise_mask": ours.noise_mask}
            found["entries"] += differing(pair, dict(latent))
        else:
            latent = {"samples": empty}
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x, level = noise, torch.tensor([SIGMA])
    with contextlib.ExitStack() as at_end:
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)

        def predict(*texts):
            many = torch.cat([x] * len(texts))
            with torch.no_grad():
                return family.prediction.predict(
                    denoiser, many, level.expand(len(texts)), texts, [], 1.0
                )

        own, bare = predict({**text, **given}), predict(text)
        found["batch"] = apart(predict({**text, **given}, text), torch.cat([own, bare]))
        found["effect"] = apart(own[:, :, 1:], bare[:, :, 1:])
        untold = family_of.encoders_of(model, clip, vae)(family, location).encode_text(CAPTION)
        found["effect of the rate"] = apart(own, predict({**untold, **given}))
    item = cached("a", bucket(64, 64, len(frames)), latents, (), {**text, **given}, clean=clean)
    gradient, total, plain, rest = losses_of(family, item, own, noisy_points, batches)
    found |= {"gradient": gradient, "loss": total, "plain loss": plain, "loss of the rest": rest}
    stepper = Own(model)
    with torch.inference_mode():
        # A model whose sigma is not a share of noise has larger latents.
        straight = part("nodes.host.graph_model").GraphModel(model).straight
        own_level = level if straight else level / (1 - level)
        own_x = x if straight else x * (1 + own_level)
        denoised = stepper.denoised(positive, latent, own_x, own_level)
        if finish is not None:
            raw = model.model.process_latent_out(denoised)
            denoised = model.model.process_latent_in(finish(raw))
        expected = x - SIGMA * own
    stepper.close()
    found["step"] = apart(expected - x, denoised - x)
    return found


def control_node(model, vae, control, positive, negative, start=None, vision=None):
    """What ComfyUI's own node gives KSampler of a control clip, and of the first frame or None."""
    from comfy_extras import nodes_wan

    import nodes

    count, _, high, wide = control.shape
    images = control.movedim(1, -1).float() / 255
    sizes = {"width": wide, "height": high, "length": count, "batch_size": 1}
    both = {"positive": positive, "negative": negative, "vae": vae, **sizes}
    if type(model.model).__name__ == "WAN21_Vace":
        found = nodes_wan.WanVaceToVideo.execute(**both, strength=1.0, control_video=images)
        return *found.args[:3], None
    if start is not None:
        both["start_image"] = start.movedim(0, -1)[None].float() / 255
        seen = nodes.CLIPVisionEncode().encode(vision, both["start_image"], "none")[0]
        both["clip_vision_output"] = seen
    return *nodes_wan.WanFunControlToVideo.execute(**both, control_video=images).args, None


def steered(model, clip, vae, control, start, vision):
    """Entries, and a step of the sampler, of a control clip, with the first frame or without."""
    import nodes

    starts = part("nodes.host.start_frames")
    encode_endpoints = part("trainer_core.data.cache.encoder_protocols").encode_endpoints

    family_of = part("nodes.host.graph_family")
    rules = part("nodes.host.control_clips")
    family = family_of.graph_family(model)
    locate = part("trainer_core.bases.locate").locate_base
    location = locate(part("trainer_core.config").BaseSection(), family, True, to_train=False)
    encoders = family_of.encoders_of(model, clip, vae, vision=vision)(family, location)
    latents, text = encoders.encode_control(control), encoders.encode_text(CAPTION)
    if start is not None:
        text |= encode_endpoints(encoders, start, None, len(control))
    shape = encoders.encode_clip(control)[None].shape
    found = {"variant": location.variant, "latent frames": shape[2]}
    with torch.inference_mode():
        sides = [nodes.CLIPTextEncode().encode(clip, each)[0] for each in (CAPTION, NEGATIVE)]
        positive, *_ = control_node(model, vae, control, *sides, start, vision)
        theirs = {k: v for k, v in positive[0][1].items() if k not in sides[0][0][1]}
        given = starts.endpoint_inputs(model.model, text, shape)
        ours = rules.control_rule(model.model).inputs(latents[None], given.steered)
        ours |= given.entries
        single = [
            {k: v[0] if isinstance(v, list) else v for k, v in e.items()} for e in (ours, theirs)
        ]
        strengths = {each.pop("vace_strength", None) for each in single}
        found["entries"] = [*differing(*single), *sorted(strengths)[1:]]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    level = torch.tensor([SIGMA])
    with contextlib.ExitStack() as at_end:
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)
        predict = family.prediction.predict
        with torch.no_grad():
            own = predict(denoiser, x, level, [text], [latents[None]], 1.0)
            bare = predict(denoiser, x, level, [text], [], 1.0)
    found["effect"] = apart(own, bare)
    stepper = Own(model)
    with torch.inference_mode():
        denoised = stepper.denoised(positive, {"samples": torch.zeros(shape)}, x, level)
    stepper.close()
    found["step"] = apart(-SIGMA * own, denoised - x)
    return found


def of_steered(folder, job):
    from clip_files import write_clip
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import BEGINNING
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae, tiny_vision

    name = job["model"]
    sizes, place = BEGINNING[name], folder / job["name"]
    model, clip, vae = tiny_model(name), tiny_clip(sizes.text), tiny_vae(sizes.vae)
    count, side = (LATENT_FRAMES - 1) * 4 + 1, sizes.pixels
    for shown in ("a", "a_control"):
        write_clip(place / "images", side, count, 16, shown, caption=CAPTION)
    (place / "images" / "a_control.txt").unlink()
    file = place / "images" / "a_control.mp4"
    read = part("trainer_core.data.clips").read_frames
    whole = part("trainer_core.types").ClipPart(0.0, count, 16.0)
    frames = [torch.from_numpy(numpy.array(each)) for each in read(file, whole)]
    control = torch.stack(frames).permute(0, 3, 1, 2)
    files, start, vision = [str(file)], None, None
    if job["steered"] == "begun":
        vision = tiny_vision(sizes.vision)
        pixels = numpy.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=numpy.uint8)
        start = torch.from_numpy(pixels).movedim(-1, 0)
        files.append(str(place / "start.png"))
        Image.fromarray(pixels).save(files[-1])
        job["dataset"] = {"start_frame": 1.0}
    with torch.inference_mode(False):
        found = steered(model, clip, vae, control, start, vision)
    job |= {"side": side, "frames": count, "kind": "lora", "begin": [files]}

    def begin(positive, negative, latent):
        return control_node(model, vae, control, positive, negative, start, vision)

    return found | trained(place, job, model, clip, vae, vision, begin)


def of_model(folder, job):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import BEGINNING, TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae, tiny_vision

    name, ends = job["model"], job.get("ends", False)
    sizes, place = TINY.get(name) or BEGINNING[name], folder / job["name"]
    model, clip, vae = tiny_model(name), tiny_clip(sizes.text), tiny_vae(sizes.vae)
    vision = tiny_vision(sizes.vision) if sizes.vision else None
    every = int(model.model.latent_format.temporal_downscale_ratio)
    count, side = (LATENT_FRAMES - 1) * every + 1, sizes.pixels
    draw = numpy.random.default_rng(0)
    pixels = draw.integers(0, 256, (count, side, side, 3), dtype=numpy.uint8)
    frames = torch.from_numpy(pixels).movedim(-1, 1)
    with torch.inference_mode(False):
        found = compared(model, clip, vae, vision, frames, ends, job.get("told"))
    job |= {"side": side, "frames": count, "kind": job.get("kind", "lora")}
    rate = job.get("told") or part("nodes.host.graph_model").GraphModel(model).clips.rate
    write_clip(place / "images", side, count, rate, caption=CAPTION)
    files = []
    for number in range(1 + ends):
        files.append(str(place / f"{number}.png"))
        Image.fromarray(pixels[-number]).save(files[-1])
    job["begin"] = [files]
    job["dataset"] = {"start_frame": 1.0, "end_frame": 1.0 if ends else 0.0}
    job["dataset"] |= {"fps": job.get("told")}

    def begin(positive, negative, latent):
        positive, negative = told(job.get("told"), positive, negative)
        return core_node(model, vae, vision, frames, ends, positive, negative)

    return found | trained(place, job, model, clip, vae, vision, begin)


def main(folder, jobs):
    wanted = {job["name"]: (folder, job) for job in json.loads(jobs.read_text(encoding="utf-8"))}

    def look(folder, job):
        return (of_steered if job.get("steered") else of_model)(folder, job)

    write_found(folder, wanted, look)


main(*map(Path, sys.argv[1:]))
