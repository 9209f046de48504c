"""Runs inside ComfyUI's interpreter: predictions of tiny MODELs, beside ComfyUI's own.

Usage: graph_predict_process.py PACK FOLDER NAMES, with ComfyUI's folder in PYTHONPATH. NAMES is a
JSON list of tiny MODELs; FOLDER gets ``results.json``: what was found for each.
"""

import contextlib
import json
import sys
import traceback
from pathlib import Path

import torch
from graph_model_process import as_package, part

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


def compared(model, family, encoders, clip):
    """What a family of a MODEL predicts, alone, in batches and with reference images."""
    from comfy_extras.nodes_edit_model import ReferenceLatent

    import nodes

    given, predict = family.given, family.predict
    side = sizes_of(model)
    noisy = torch.randn(2, given.channels, side, side, generator=torch.Generator().manual_seed(1))
    reference = torch.randn(noisy.shape, generator=torch.Generator().manual_seed(2))
    sigma, found = torch.tensor(SIGMAS), {"passes": 0}
    texts = [encoders.encode_text(text) for text in (SHORT, LONG)]

    def counted(*_):
        found["passes"] += 1

    with contextlib.ExitStack() as at_end:
        denoiser = given.open(torch.float32, torch.device("cpu"), at_end)

        def predicted(rows, controls=()):
            x, level = noisy[rows], sigma[rows]
            shown = [each[rows] for each in controls]
            chosen = [texts[row] for row in rows]
            with torch.no_grad():
                return predict(denoiser, x, level, chosen, shown, GUIDANCE)

        at_end.enter_context(denoiser.register_forward_hook(counted))
        together = predicted([0, 1])
        passes = found["passes"]
        alone = torch.cat([predicted([0]), predicted([1])])
        found = {"passes": passes, "batch": apart(together, alone), "size": float(alone.std())}
        if "edit_plus" in family.variants:
            edited = predicted([0], [reference])
            found["reference"] = apart(edited, alone[:1])
            both = predicted([0, 1], [reference])
            found["reference batch"] = apart(both[:1], edited)
        sampling = model.get_model_object("model_sampling")
    own = ComfyuisOwn(model, predict)
    entry = nodes.CLIPTextEncode().encode(clip, SHORT)[0]
    if predict.guided:
        entry = [[each[0], {**each[1], "guidance": GUIDANCE}] for each in entry]
    shaped = reference[:1].unsqueeze(2) if predict.dimensions == 3 else reference[:1]
    latent = {"samples": model.model.process_latent_out(shaped)}
    cases = {"own": (entry, alone[:1])}
    if "edit_plus" in family.variants:
        cases["own reference"] = (ReferenceLatent.execute(entry, latent).result[0], edited)
    for name, (conditioning, ours) in cases.items():
        denoised, x, level = own.denoised(conditioning, noisy[:1], sigma[:1])
        output = ours.reshape(x.shape)
        expected = sampling.calculate_denoised(level, output, x)
        found[name] = apart(expected - x, denoised - x)
    own.close()
    return found


def sizes_of(model):
    from tiny_models.sizes import TINY

    name = model.cached_patcher_init[1][0]
    return TINY[name].pixels // int(model.model.latent_format.spacial_downscale_ratio)


def main(pack, folder, names):
    as_package(pack)
    torch.set_num_threads(1)
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip

    found = {}
    for name in json.loads(names.read_text(encoding="utf-8")):
        family_of = part("nodes.host.graph_family")
        with torch.inference_mode():
            model, clip = tiny_model(name), tiny_clip(TINY[name].text)
            encoders = family_of.encoders_of(model, clip, None)(None, None)
        try:
            family = family_of.graph_family(model)
            found[name] = compared(model, family, encoders, clip)
        except Exception as error:  # noqa: BLE001 - the test tells
            traceback.print_exc()
            found[name] = {"error": repr(error)}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
