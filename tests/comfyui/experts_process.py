"""Runs inside ComfyUI's interpreter: two tiny MODELs of videos as the experts of one model.

FOLDER gets ``results.json``: what was found.
"""

import dataclasses
import sys
from pathlib import Path

from clip_files import write_clip
from graph_model_process import (
    CAPTION,
    DRAWN,
    NEGATIVE,
    SEED,
    as_latents,
    changed,
    loaded,
    marks,
    run_config,
    write_found,
)
from loaded_pack import part

FRAMES, SWITCH = 5, 2 / 3


def named(model, name):
    """A MODEL as a loader leaves it, which tells its file."""
    model.cached_patcher_init = (None, (f"/models/{name}.safetensors",))
    return model


def sampled_by_both(high, low, clip, side):
    """The latents of two KSampler (Advanced), as the low one has them (normalised)."""
    import torch

    import nodes

    positive, negative = (
        nodes.CLIPTextEncode().encode(clip, each)[0] for each in (CAPTION, NEGATIVE)
    )
    found = low.model.latent_format
    small, deep = side // found.spacial_downscale_ratio, (FRAMES - 1) // 4 + 1
    latent = {"samples": torch.zeros(1, found.latent_channels, deep, small, small)}
    words = (DRAWN, 1.0, "euler", "simple", positive, negative)
    border = round(DRAWN * SWITCH)
    advanced = nodes.KSamplerAdvanced().sample
    (half,) = advanced(high, "enable", SEED, *words, latent, 0, border, "enable")
    (whole,) = advanced(low, "disable", SEED, *words, half, border, DRAWN, "disable")
    return low.model.process_latent_in(whole["samples"])


def choice_of(model, **inputs):
    experts = part("nodes.services.expert_models")
    given = experts.ExpertInputs(switch_at=SWITCH, **inputs)
    return part("nodes.services.graph_base").base_of_model(model, "fp32", expert=given)


def trained(folder, name, choice, side, clip, vae):
    """Train an expert, and sample with its adapter as previews do: latents and its file."""
    import torch

    graph_run = part("nodes.services.graph_run")
    described = part("nodes.services.merged_run_config")
    job = {"name": name, "kind": "lora", "frames": FRAMES, "steps": 4}
    config = run_config(folder, job, side, choice.family)
    training = config.training.model_copy(update={"sigma": type(config.training.sigma)()})
    config = described._of_expert(config.model_copy(update={"training": training}), choice.expert)
    source = graph_run.source_of(clip, vae, choice)
    result = part("trainer_core.training").train(
        config, make_source=source, family=graph_run.family_of(choice)
    )
    given = (lambda f, location: as_latents(source(f, location)),)
    with torch.inference_mode(False), torch.no_grad():
        (own,) = part("trainer_core.inference.pipeline").sample_prompts(
            config, result.adapters[0], 1.0, *given, family=graph_run.family_of(choice)
        )
    sigma = config.training.sigma
    return own, result.adapters[0], [sigma.min, sigma.max]


def look(folder):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae
    from tiny_models.weights import weights_hash

    sizes = TINY["wan21"]
    side = sizes.pixels
    write_clip(folder / "images", side, 2 * FRAMES, 16.0, caption=CAPTION)
    clip, vae = tiny_clip(sizes.text), tiny_vae(sizes.vae)
    high, low = (
        named(tiny_model("wan21", seed, "fp32"), f"wan2.2_t2v_{word}_noise_14B")
        for seed, word in enumerate(("high", "low"))
    )
    sampled_by_both(high, low, clip, side)  # ComfyUI adds to the ops of a model it loads first
    before = [(weights_hash(each), *marks(each)) for each in (high, low)]
    first = choice_of(high, other=low)
    own, file, levels = trained(folder, "x_high_noise", first, side, clip, vae)
    cached = sorted(each.name for each in (folder / "cache").rglob("*.safetensors"))
    found = {"levels": [levels]}
    patched, unread = loaded(high, file)
    theirs = sampled_by_both(patched, low, clip, side).reshape(own.shape)
    apart = [float((own - theirs).abs().max() / theirs.abs().max())]
    named(patched, "wan2.2_t2v_high_noise_14B")
    own, file, levels = trained(
        folder, "x_low_noise", choice_of(low, other=patched), side, clip, vae
    )
    both, more = loaded(low, file)
    theirs = sampled_by_both(patched, both, clip, side).reshape(own.shape)
    bare = sampled_by_both(high, low, clip, side).reshape(own.shape)
    found["apart"] = [*apart, float((own - theirs).abs().max() / theirs.abs().max())]
    found["change"] = float((theirs - bare).norm() / bare.norm())
    found["levels"].append(levels)
    found["unread"] = unread + more
    again = sorted(each.name for each in (folder / "cache").rglob("*.safetensors"))
    found["encoded_again"] = again != cached
    found["changed"] = [
        part_of
        for one, model in zip(before, (high, low), strict=True)
        for part_of in changed(one, (weights_hash(model), *marks(model)))
    ]
    found["alone"] = dataclasses.asdict(choice_of(high).expert)
    error = part("trainer_core.errors").InputError
    found["refused"] = {}
    other = named(tiny_model("ltxv", 0, "fp32"), "ltx_low_noise")
    shifted = shifted_by(low, 3.0)
    to_video = named(tiny_model("wan21_i2v", 1, "fp32"), "wan2.2_i2v_low_noise_14B")
    for name, (model, inputs) in {
        "two for high noise": (high, {"other": patched}),
        "named otherwise": (high, {"role": "low noise"}),
        "of another class": (high, {"other": other}),
        "for images": (high, {"other": to_video}),
        "unnamed": (named(high.clone(), "wan2.2-t2v-a14b"), {}),
        "unnamed, from an image": (named(tiny_model("wan22_i2v", 1, "fp32"), "a"), {}),
        "another shift": (high, {"other": shifted}),
        "the same": (named(high.clone(), "a"), {"role": "low noise", "other": high}),
        "no role": (named(high.clone(), "a"), {"other": low}),
    }.items():
        try:
            choice_of(model, **inputs)
        except error as refusal:
            found["refused"][name] = refusal.found
    return found


def shifted_by(model, shift):
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    (found,) = ModelSamplingSD3().patch(model, shift)
    return named(found, "wan2.2_t2v_low_noise_14B")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_found(place, {"experts": (place,)}, look)
