"""Runs inside ComfyUI's interpreter: predictions of tiny MODELs, beside ComfyUI's own.

Arguments: FOLDER NAMES. NAMES is a JSON list of tiny MODELs; FOLDER gets ``results.json``: what was
found for each.
"""

import contextlib
import json
import sys
from pathlib import Path

import torch
from graph_model_process import write_found
from loaded_pack import part

SHORT, LONG = "a red diamond", "a large blue circle on a wide green square"
SIGMAS, GUIDANCE = (0.7, 0.3), 3.0


def apart(one, other):
    return float((one - other).norm() / other.norm())


class ComfyuisOwn:
    """One step of a sampler, as ComfyUI makes it of its CONDITIONING."""

    def __init__(self, model, predict):
        import comfy.model_management
        from comfy import sampler_helpers, samplers

        self.model, self.predict = model.clone(), predict
        self.samplers, self.convert = samplers, sampler_helpers.convert_cond
        comfy.model_management.load_models_gpu([self.model])
        self.model.pre_run()

    def close(self):
        self.model.cleanup()

    def denoised(self, conditioning, noisy, sigma):
        """The denoised latents, and x and the sigma that the sampler has."""
        x, level = self.predict._as_sampled(noisy, sigma)
        conds = {"positive": self.convert(conditioning)}
        found = self.samplers.process_conds(
            self.model.model,
            x,
            conds,
            x.device,
            latent_image=torch.zeros_like(x),
            seed=0,
            latent_shapes=[x.shape],
        )
        options = {"transformer_options": {"sample_sigmas": level}}
        cond = [found["positive"]]
        batch = self.samplers.calc_cond_batch(self.model.model, cond, x, level, options)
        return batch[0], x, level


class OfModel:
    """What a family of a MODEL predicts of two samples, whose captions differ in length."""

    def __init__(self, model, family, encoders):
        self.family, side = family, places_of(model)
        shape = 2, family.lent.channels, side, side
        self.noisy = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        self.reference = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        self.sigma, self.passes = torch.tensor(SIGMAS), 0
        self.texts = [encoders.encode_text(text) for text in (SHORT, LONG)]

    def open(self, at_end):
        self.denoiser = self.family.lent.open(torch.float32, torch.device("cpu"), at_end)
        at_end.enter_context(self.denoiser.register_forward_hook(self._count))

    def _count(self, *_):
        self.passes += 1

    def __call__(self, *rows, edited=False):
        rows = list(rows)
        texts = [self.texts[row] for row in rows]
        controls = [self.reference[rows]] if edited else []
        with torch.no_grad():
            return self.family.prediction.predict(
                self.denoiser, self.noisy[rows], self.sigma[rows], texts, controls, GUIDANCE
            )


def checks_of_a_run(model, family, encoders):
    """Passes before the first one of a run on pairs, or what is said of the MODEL."""
    predicted = OfModel(model, family, encoders)
    with contextlib.ExitStack() as at_end:
        predicted.open(at_end)
        row = predicted.noisy[:1], predicted.sigma[:1], predicted.texts[:1]
        try:
            family.prediction.predict(predicted.denoiser, *row, [predicted.reference[:1]], GUIDANCE)
        except part("trainer_core.errors").BaseModelError as error:
            return str(error)
    return predicted.passes - 1


def compared(model, family, encoders, clip):
    """Predictions of one sample, of two in a batch and with reference images."""
    predicted, outputs, found = OfModel(model, family, encoders), {}, {}
    refused = part("trainer_core.errors").BaseModelError
    with contextlib.ExitStack() as at_end:
        predicted.open(at_end)
        together = predicted(0, 1)
        found["passes"] = predicted.passes
        outputs["own"] = predicted(0)
        alone = torch.cat([outputs["own"], predicted(1)])
        found["batch"] = apart(together, alone)
        found["takes references"] = "edit_plus" in family.variants
        if found["takes references"]:
            try:
                outputs["own with reference"] = edited = predicted(0, edited=True)
            except refused as error:
                found["refused"] = str(error)
            else:
                found["reference"] = apart(edited, outputs["own"])
                found["batch with reference"] = apart(predicted(0, 1, edited=True)[:1], edited)
    return found | beside_comfyui(model, predicted, clip, outputs)


def beside_comfyui(model, predicted, clip, outputs):
    """How far a step of ComfyUI's own samplers is from each output."""
    from comfy_extras.nodes_edit_model import ReferenceLatent

    import nodes

    predict, found = predicted.family.prediction.predict, {}
    own = ComfyuisOwn(model, predict)
    for name, output in outputs.items():
        entry = nodes.CLIPTextEncode().encode(clip, SHORT)[0]
        if predict.guided:
            entry = [[each[0], {**each[1], "guidance": GUIDANCE}] for each in entry]
        if name != "own":
            reference = predicted.reference[:1]
            shaped = reference.unsqueeze(2) if predict.dimensions == 3 else reference
            latent = {"samples": model.model.process_latent_out(shaped)}
            entry = ReferenceLatent.execute(entry, latent).result[0]
        denoised, x, level = own.denoised(entry, predicted.noisy[:1], predicted.sigma[:1])
        sampling = model.get_model_object("model_sampling")
        expected = sampling.calculate_denoised(level, output.reshape(x.shape), x)
        found[name] = apart(expected - x, denoised - x)
    own.close()
    return found


def places_of(model):
    from tiny_models.sizes import TINY

    name = model.cached_patcher_init[1][0]
    return TINY[name].pixels // int(model.model.latent_format.spacial_downscale_ratio)


def of_tiny_model(name):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip

    family_of = part("nodes.host.graph_family")
    model, clip = tiny_model(name), tiny_clip(TINY[name].text)
    with torch.inference_mode(False):
        family = family_of.graph_family(model)
        base = part("trainer_core.config").BaseSection()
        location = part("trainer_core.bases.locate").locate_base(
            base, family, False, to_train=False
        )
        encoders = family_of.encoders_of(model, clip, None)(family, location)
        found = {}
        if "edit_plus" in family.variants:
            again = family_of.graph_family(model)
            found["checks"] = checks_of_a_run(model, again, encoders)
        return found | compared(model, family, encoders, clip)


def main(folder, names):
    wanted = json.loads(names.read_text(encoding="utf-8"))
    write_found(folder, {name: (name,) for name in wanted}, of_tiny_model)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
