"""Runs inside ComfyUI's interpreter: our step beside finite differences, and ComfyUI's own step.

Arguments: FOLDER JOBS. JOBS is a JSON object: name of a tiny MODEL to the depths of gradient
checkpointing at which ComfyUI's Train LoRA makes its step too. FOLDER gets ``results.json``:
losses, and derivatives along directions.
"""

import json
import sys
from pathlib import Path

from loaded_pack import part

SIGMA = 0.6
STEP = 5e-2
"""Of a finite difference, along a direction of length 1: ComfyUI's rotations are in float32."""

LAYERS = 3
"""Of which a derivative by the second factor alone is looked at."""


class Exact:
    """The loss of the raw output in float64, as a function of the adapters' factors.

    Weights are the base's with the adapters' products added: nothing of what trains is used but
    the target, and that only for what is neither flow nor eps.
    """

    def __init__(self, name, step, factors):
        import torch
        from tiny_models import denoisers

        denoisers.PRECISIONS["fp64"] = (torch.float64, None)
        self._step = step
        self.factors = {
            f"{layer}.{factor}": values.double()
            for layer, both in factors.items()
            for factor, values in both.items()
        }
        self._model = denoisers.tiny_model(name, 0, "fp64").model
        denoiser = self._model.diffusion_model.requires_grad_(False)
        self._weights = {layer: denoiser.get_submodule(layer).weight for layer in factors}
        self._base = {layer: each.detach().clone() for layer, each in self._weights.items()}
        self._conditioning = self._prepared()
        denoiser.register_forward_hook(self._keep)
        self._output = None

    def _prepared(self):
        import comfy.sampler_helpers
        import comfy.samplers

        noise = self._step.noise
        self._model.latent_shapes = [noise.shape]
        (entry,) = comfy.sampler_helpers.convert_cond(self._step.conditioning)
        (ready,) = comfy.samplers.encode_model_conds(
            self._model.extra_conds,
            [{**entry, **self._step.options}],
            noise,
            noise.device,
            "positive",
            latent_image=self._step.latents,
            denoise_mask=None,
            seed=0,
            latent_shapes=[noise.shape],
        )
        held = ready["model_conds"].items()
        return {name: each.process_cond(batch_size=1).cond for name, each in held}

    def _keep(self, module, args, output):
        del module, args
        self._output = output

    def __call__(self, changes=None):
        """The loss with changes of some factors."""
        import torch

        step, changes = self._step, changes or {}
        with torch.no_grad():
            for layer, weight in self._weights.items():
                places = (f"{layer}.up", f"{layer}.down")
                up, down = (self.factors[each] + changes.get(each, 0) for each in places)
                weight.copy_(self._base[layer] + (up @ down).reshape(weight.shape) / len(down))
            level = torch.tensor([step.level], dtype=torch.float64)
            # ComfyUI's fused rotations know no float64.
            engine = part("nodes.host.comfy_model_management")
            with engine.in_training(), engine.differentiable_kernels(), torch.enable_grad():
                self._model.apply_model(step.noisy(), level, **self._conditioning)
            return float((self._output.double() - step.target()).square().mean())

    def slope(self, direction):
        """The derivative along a direction, which is given by factor."""
        length = sum(float(each.square().sum()) for each in direction.values()) ** 0.5
        near, far = (self._difference(direction, way / length) for way in (STEP, 2 * STEP))
        return (8 * near - far) / (12 * STEP) * length

    def _difference(self, direction, way):
        rise = {name: way * each for name, each in direction.items()}
        return self(rise) - self({name: -each for name, each in rise.items()})


def directions(factors):
    """Name to a direction: by all second factors along themselves, and by those of some layers."""
    import torch

    generator = torch.Generator().manual_seed(11)
    ups = {place: each for place, each in factors.items() if place.endswith(".up")}
    found = {"all layers": {place: each / each.norm() for place, each in ups.items()}}
    for place in list(ups)[:: max(1, len(ups) // LAYERS)]:
        drawn = torch.randn(ups[place].shape, generator=generator, dtype=torch.float64)
        found[place] = {place: drawn}
    return found


def along(gradients, direction):
    """The derivative that gradients tell along a direction."""
    return sum(
        float((gradients[place].double().flatten() * each.flatten()).sum())
        for place, each in direction.items()
        if gradients[place] is not None
    )


def compared(name, depths):
    import torch
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from train_lora_steps import CoreStep, drawn_factors, given_step, our_step

    sizes = TINY[name]
    with torch.inference_mode():
        model, clip = tiny_model(name), tiny_clip(sizes.text)
        step = given_step(model, clip, sizes.pixels, SIGMA)
    factors = drawn_factors(model.model.diffusion_model)
    exact = Exact(name, step, factors)
    kinds = directions(exact.factors)
    found = {"loss": exact(), "level": step.level, "steps": {}}
    found["slopes"] = {label: exact.slope(each) for label, each in kinds.items()}
    ways = {
        "ours": lambda: our_step(model, step, factors, False),
        "ours, checkpointed": lambda: our_step(model, step, factors, True),
    }
    ways |= {f"core, depth {each}": CoreStep(model, step, factors, each).run for each in depths}
    for label, run in ways.items():
        try:
            loss, gradients = run()
        except RuntimeError as error:
            found["steps"][label] = {"error": str(error)[:200]}
            continue
        slopes = {kind: along(gradients, each) for kind, each in kinds.items()}
        found["steps"][label] = {"loss": loss, "slopes": slopes}
    return found


def main(folder, jobs):
    import comfy.utils
    import torch

    comfy.utils.PROGRESS_BAR_ENABLED = False
    torch.set_num_threads(1)
    wanted = json.loads(jobs.read_text(encoding="utf-8"))
    found = {name: compared(name, depths) for name, depths in wanted.items()}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


main(*map(Path, sys.argv[1:]))
