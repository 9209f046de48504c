"""Runs inside ComfyUI's interpreter: the trainer's parameterizations beside ComfyUI's classes.

Usage: model_sampling_process.py, with ComfyUI's folder in PYTHONPATH. Prints a line of JSON: each
model type to the largest differences in float64, and the schedules that both sample with.
"""

import json
import sys
from types import SimpleNamespace

import comfy.k_diffusion.sampling
import comfy.model_base
import comfy.samplers
import torch
from loaded_pack import part

sample_euler = part("trainer_core.diffusion.flow").sample_euler
NoiseLevels = part("trainer_core.diffusion.noise_levels").NoiseLevels
KINDS = part("trainer_core.diffusion.parameterization")
EPS, FLOW, V = KINDS.EPS, KINDS.FLOW, KINDS.v_prediction()
CASES = {
    "EPS": (EPS, {}),
    "STABLE_CASCADE": (EPS, {}),
    "V_PREDICTION": (V, {}),
    "V_PREDICTION, zsnr": (V, {"zsnr": True}),
    "V_PREDICTION_EDM": (V, {"sigma_min": 0.002, "sigma_max": 80.0}),
    "V_PREDICTION_EDM, 0.5": (KINDS.v_prediction(0.5), {"sigma_data": 0.5}),
    "V_PREDICTION_CONTINUOUS": (V, {"sigma_min": 0.01, "sigma_max": 300.0}),
    "V_PREDICTION_DDPM": (V, {}),
    "EDM": (KINDS.edm(0.5), {"sigma_data": 0.5, "sigma_min": 0.002, "sigma_max": 80.0}),
    "FLOW": (FLOW, {"shift": 3.0}),
    "FLOW, scaled": (KINDS.flow(8.0), {"shift": 3.0, "noise_scale": 8.0}),
    "FLUX": (FLOW, {}),
    "FLOW_COSMOS": (FLOW, {"sigma_data": 1.0, "sigma_min": 0.002, "sigma_max": 80.0}),
}
STRAIGHT = ("FLOW", "FLOW, scaled", "FLUX")
"""Those whose sigmas are shares of noise already."""


def bent(given, level):
    """A model's raw output, of what it is given and its level."""
    level = level.reshape(-1, 1, 1, 1)
    return torch.tanh(1.3 * given.roll(1, -1) + level.log1p()) + 0.1 * given


def compared(name, kind, settings):
    model_type = comfy.model_base.ModelType[name.split(",")[0]]
    config = SimpleNamespace(sampling_settings=settings)
    theirs = comfy.model_base.model_sampling(config, model_type)
    table = theirs.sigmas.double()
    sigmas = table[torch.linspace(0, len(table) - 1, 9).long()]
    straight = name in STRAIGHT
    shares = sigmas if straight else sigmas / (1 + sigmas)
    generator = torch.Generator().manual_seed(3)
    shape = (2, len(sigmas), 4, 5, 5)
    image, noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    # What ComfyUI's sampler holds is that much of the straight path.
    size = (torch.ones_like(shares) if straight else 1 / (1 - shares)).reshape(-1, 1, 1, 1)
    ours = kind.noised(image, noise, shares)
    held = theirs.noise_scaling(sigmas, noise.clone(), image)
    found = {"noised": worst(ours * size, held)}
    if name == "V_PREDICTION_DDPM":
        # It is told latents of unit variance, as its formula takes them.
        held = held / (1 + sigmas**2).sqrt().reshape(-1, 1, 1, 1)
    target = kind.target(image, noise, shares)
    found["denoised"] = worst(theirs.calculate_denoised(sigmas, target, held), image, sigmas.max())
    if name != "V_PREDICTION_DDPM":
        found.update(generated(theirs, kind, sigmas, shares, noise, straight))
    return found


def generated(theirs, kind, sigmas, shares, noise, straight):
    """Where both end with the same bent model, from the strongest of these levels on."""

    def model(x, sigma):
        output = bent(theirs.calculate_input(sigma, x.clone()), sigma)
        return theirs.calculate_denoised(sigma, output, x)

    def velocity(latents, share):
        sigma = share if straight else share / (1 - share)
        factor = 1.0 if straight else 1 / (1 - share).reshape(-1, 1, 1, 1)
        output = bent(theirs.calculate_input(sigma, latents * factor), sigma)
        return kind.velocity(output, latents, share)

    noise, zero = noise[:2], sigmas.new_zeros(1)
    falling = [torch.cat([each.flip(0), zero]) for each in (sigmas, shares)]
    begin = theirs.noise_scaling(falling[0][:1], noise.clone(), torch.zeros_like(noise), True)
    made = kind.start(noise, float(falling[1][0]))
    end = comfy.k_diffusion.sampling.sample_euler(model, begin, falling[0], disable=True)
    mine = sample_euler(velocity, made, falling[1])
    size = 1.0 if straight else 1 / (1 - falling[1][0])
    return {"start": worst(made * size, begin, begin.abs().max()), "end": worst(mine, end)}


def worst(one, other, scale=1.0):
    return float((one - other).abs().max() / scale)


def schedules():
    """What both sample with, as shares of noise."""
    found = {}
    for name in ("EPS", "V_PREDICTION, zsnr", "STABLE_CASCADE"):
        model_type = comfy.model_base.ModelType[name.split(",")[0]]
        config = SimpleNamespace(sampling_settings=CASES[name][1])
        theirs = comfy.model_base.model_sampling(config, model_type)
        levels = NoiseLevels.from_k(theirs.sigmas.double().tolist())
        for steps in (1, 7, 20, 30):
            k = comfy.samplers.simple_scheduler(theirs, steps).double()
            ours = levels.sampling(steps)
            found[f"{name} {steps}"] = worst(ours, k / (1 + k))
    return found


with torch.no_grad():
    made = {name: compared(name, *case) for name, case in CASES.items()}
    sys.stdout.write(json.dumps({"types": made, "schedules": schedules()}) + "\n")
