"""Runs inside ComfyUI's interpreter: our step beside that of ComfyUI's own Train LoRA.

Usage: train_lora_loss_process.py PACK FOLDER MODEL..., with ComfyUI's folder in PYTHONPATH. FOLDER
gets ``results.json``: losses, and how far gradients are from finite differences in float64.
"""

import json
import sys
from pathlib import Path

SIGMA = 0.6
STEP = 1e-3
"""Of a finite difference, along a direction of length 1."""


def join(one, other):
    import torch

    return torch.cat([each.double().flatten() for each in (one, other)])


def flat(gradients, names):
    import torch

    return torch.cat([gradients[name].detach().double().flatten() for name in names])


class Exact:
    """The loss of the raw output in float64, as a function of the adapters' factors.

    Weights are the base's with the adapters' products added: nothing of what trains is used.
    """

    def __init__(self, name, given, factors, straight):
        import torch
        from tiny_models import denoisers
        from train_lora_steps import GUIDANCE

        denoisers.PRECISIONS["fp64"] = (torch.float64, None)
        self._given, self._straight = given, straight
        self.factors = {
            f"{layer}.{factor}": values.double()
            for layer, both in factors.items()
            for factor, values in both.items()
        }
        with torch.inference_mode(False), torch.no_grad():
            self._model = denoisers.tiny_model(name, 0, "fp64").model
            self._weights = {
                layer: self._model.diffusion_model.get_submodule(layer).weight for layer in factors
            }
            self._base = {layer: each.detach().clone() for layer, each in self._weights.items()}
            self._conditioning = self._prepared(GUIDANCE)
        self._model.diffusion_model.register_forward_hook(self._keep)
        self._output = None

    def _prepared(self, guidance):
        import comfy.samplers
        import comfy.sampler_helpers

        noise = self._given.noise
        (entry,) = comfy.sampler_helpers.convert_cond(self._given.conditioning)
        (ready,) = comfy.samplers.encode_model_conds(
            self._model.extra_conds,
            [{**entry, "guidance": guidance}],
            noise,
            noise.device,
            "positive",
            latent_image=self._given.latents,
            denoise_mask=None,
            seed=0,
        )
        found = {name: each.process_cond(1) for name, each in ready["model_conds"].items()}
        return {name: each.cond for name, each in found.items()}

    def _keep(self, module, args, output):
        del module, args
        self._output = output

    def __call__(self, changes=None):
        """The loss with changes of some factors."""
        import torch
        from train_lora_steps import part

        changes = changes or {}
        given, s = self._given, self._given.sigma
        with torch.no_grad():
            for layer, weight in self._weights.items():
                up, down = (
                    self.factors[place] + changes.get(place, 0)
                    for place in (f"{layer}.up", f"{layer}.down")
                )
                delta = (up @ down).reshape(weight.shape) / down.shape[0]
                weight.copy_(self._base[layer] + delta)
            latents, noise = given.latents.double(), given.noise.double()
            noisy = (1 - s) * latents + s * noise
            x = noisy if self._straight else noisy / (1 - s)
            level = torch.tensor([given.level(self._straight)], dtype=torch.float64)
            # Its fused rotations know no float64.
            with part("nodes.host.comfy_engine").in_training():
                self._model.apply_model(x, level, **self._conditioning)
            wanted = noise - latents if self._straight else noise
            return float((self._output.double() - wanted).square().mean())

    def slope(self, direction):
        """The derivative along a direction, which is given by factor."""
        length = sum(float(each.square().sum()) for each in direction.values()) ** 0.5
        rise = {name: STEP / length * each for name, each in direction.items()}
        fall = {name: -each for name, each in rise.items()}
        return (self(rise) - self(fall)) / (2 * STEP) * length


def directions(factors, chosen):
    """For some layers, a direction of their second factor each."""
    import torch

    generator = torch.Generator().manual_seed(11)
    found = {}
    for layer in chosen:
        shape = factors[layer]["up"].shape
        found[layer] = {
            f"{layer}.up": torch.randn(shape, generator=generator, dtype=torch.float64)
        }
    return found


def along(gradients, direction):
    return sum(
        float((gradients[name].double().reshape(each.shape) * each).sum())
        for name, each in direction.items()
    )


def compared(name):
    import torch
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from train_lora_steps import CoreStep, drawn_factors, given, our_step

    sizes = TINY[name]
    straight = name.startswith("flux")
    with torch.inference_mode():
        model, clip = tiny_model(name), tiny_clip(sizes.text)
        step = given(model, clip, sizes.pixels, SIGMA)
    with torch.inference_mode(False):
        factors = drawn_factors(model.model.diffusion_model)
        exact = Exact(name, step, factors, straight)
        found = {"exact": exact(), "sigma": step.level(straight), "steps": {}}
        layers = list(factors)
        every = {
            place: values / values.norm()
            for place, values in exact.factors.items()
            if place.endswith(".up")
        }
        kinds = {"all layers": every, **directions(factors, layers[:: max(1, len(layers) // 6)])}
        found["slopes"] = {label: exact.slope(each) for label, each in kinds.items()}
    ways = {
        "ours": lambda: our_step(model, step, factors, False),
        "ours, checkpointed": lambda: our_step(model, step, factors, True),
    }
    for depth in (0, 1, 2):
        core = CoreStep(model, step, factors, straight, depth)
        ways[f"core, depth {depth}"] = core.run
    reference = None
    for label, run in ways.items():
        with torch.inference_mode():
            try:
                loss, gradients = run()
            except RuntimeError as error:
                found["steps"][label] = {"error": str(error)[:200]}
                continue
        missing = [place for place, each in gradients.items() if each is None]
        gradients = {k: torch.zeros(()) if v is None else v for k, v in gradients.items()}
        entry = {"loss": loss, "missing": missing}
        scale = 1.0 if label.startswith("ours") else step.level(straight) ** 2
        with torch.inference_mode(False):
            scaled = {
                place: (v / scale).expand(exact.factors[place].numel())
                if v.ndim == 0
                else v.flatten() / scale
                for place, v in gradients.items()
            }
            entry["slopes"] = {
                kind: sum(
                    float((scaled[place].double() * each.flatten()).sum())
                    for place, each in direction.items()
                )
                for kind, direction in kinds.items()
            }
            whole = torch.cat([scaled[place].double() for place in exact.factors])
            if reference is None:
                reference = whole
            entry["cosine"] = float(whole @ reference / (whole.norm() * reference.norm()))
            entry["difference"] = float((whole - reference).norm() / reference.norm())
        found["steps"][label] = entry
    return found


def main(pack, folder, *names):
    import comfy.utils
    import torch
    from train_lora_steps import load_pack

    load_pack(pack)

    comfy.utils.PROGRESS_BAR_ENABLED = False
    torch.set_num_threads(1)
    found = {str(name): compared(str(name)) for name in names}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), *sys.argv[3:])
