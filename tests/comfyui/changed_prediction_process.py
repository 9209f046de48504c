"""Runs inside ComfyUI's interpreter: two steps on tiny MODELs that carry patches of nodes.

Arguments: FOLDER NAMES. NAMES is a JSON list of [model, patch]; FOLDER gets ``results.json``: for
each the error, or how many layers were trained and moved.
"""

import contextlib
import json
import sys
from pathlib import Path

import torch
from graph_predict_process import SHORT, places_of
from loaded_pack import part


def detached(func, *args, **options):
    with torch.no_grad():
        return func(*args, **options)


def rounded(func, *args, **options):
    """As attention in 8 bits: about a hundredth of its result is lost."""
    with torch.no_grad():
        found = func(*args, **options)
        step = found.abs().amax() / 127
        return (found / step).round() * step


def weakened(func, *args, **options):
    return func(*args, **options) * 0.3


class KeptKeys:
    """Keys of the first pass are used in all that follow, as a cache of references does."""

    def __init__(self):
        self.kept = {}

    def __call__(self, q, k, v, extra_options):
        kept = self.kept.setdefault((extra_options["block"], extra_options["block_index"]), k)
        return q, k if kept is k else kept[: len(k)], v


class OtherCount(KeptKeys):
    """The same, of a pack that trusts in batches of one size."""

    def __call__(self, q, k, v, extra_options):
        kept = self.kept.setdefault((extra_options["block"], extra_options["block_index"]), k)
        return q, k + 0 * kept.reshape(k.shape), v


def by_first_level(q, k, v, extra_options):
    return (q if float(extra_options["sigmas"][0]) < 0.5 else q * 0.1), k, v


def attention(override):
    def change(model):
        model.model_options["transformer_options"]["optimized_attention_override"] = override

    return change


def global_kernel(model):
    """A pack that replaces torch's own attention, for all of torch."""
    own = torch.nn.functional.scaled_dot_product_attention

    def kernel(*args, **options):
        with torch.no_grad():
            return own(*args, **options)

    torch.nn.functional.scaled_dot_product_attention = kernel


def compiled_blocks(model):
    for name, block in model.model.diffusion_model.named_children():
        if isinstance(block, torch.nn.ModuleList):
            for number, each in enumerate(block):
                place = f"diffusion_model.{name}.{number}"
                model.add_object_patch(place, torch.compile(each, backend="eager"))


def compiled_and_loaded(model):
    import comfy.model_management

    compiled_blocks(model)
    comfy.model_management.load_models_gpu([model])


KINDS = {"sdxl": "lora", "flux": "lokr", "lumina2": "loha", "wan21": "lora"}
CHANGES = {
    "plain": lambda model: None,
    "detached": attention(detached),
    "8 bits": attention(rounded),
    "weakened": attention(weakened),
    "kept keys": lambda model: model.set_model_attn1_patch(KeptKeys()),
    "compiled blocks": compiled_blocks,
    "compiled and loaded": compiled_and_loaded,
    "another CLIP": lambda model: None,
    "other count": lambda model: model.set_model_attn1_patch(OtherCount()),
    "detached output": lambda model: model.set_model_attn1_output_patch(lambda n, _: n.detach()),
    "first level of one": lambda model: model.set_model_attn1_patch(by_first_level),
    "first level": lambda model: model.set_model_attn1_patch(by_first_level),
    "same for all": lambda model: model.set_model_attn1_patch(lambda q, k, v, _: (q * 0.9, k, v)),
    "torch's kernel": global_kernel,
}


def trained(name, change):
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip

    count = 2 if change == "first level" else 1
    with torch.inference_mode():
        text = "sd15" if change == "another CLIP" else name
        model, clip = tiny_model(name).clone(), tiny_clip(TINY[text].text)
        CHANGES[change](model)
    blocks = [type(each).__name__ for each in model.model.modules()]
    config = part("trainer_core.config")
    family = part("nodes.host.graph_family").graph_family(model)
    assert blocks == [type(each).__name__ for each in model.model.modules()], "nothing is opened"
    locate = part("trainer_core.bases.locate").locate_base
    located = locate(config.BaseSection(), family, False)
    make = part("nodes.host.graph_family").encoders_of(model, clip, None)
    with torch.inference_mode(False), contextlib.ExitStack() as at_end:
        text = make(family, located).encode_text(SHORT)
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)
        settings = config.AdapterConfig(kind=KINDS[name], rank=1, targets="all_linear")
        adapter = part("trainer_core.adapters.attachment").attach(
            denoiser, settings, presets=family.layers.presets, seed=1
        )
        factors = [each for each in denoiser.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(factors, 0.1)
        side = places_of(model)
        shape = count, family.lent.channels, side, side
        for step in range(2):
            noisy = torch.randn(shape, generator=torch.Generator().manual_seed(step))
            level = torch.full((count,), 0.6)
            found = family.prediction.predict(denoiser, noisy, level, [text] * count, [], 1.0)
            found.square().mean().backward()
            optimizer.step()
        layers = {
            name
            for name, module in denoiser.named_modules()
            for each in module.parameters(recurse=False)
            if each.requires_grad and each.grad is not None and each.grad.any()
        }
        count = len(adapter.layers)
        adapter.detach()
    assert blocks == [type(each).__name__ for each in model.model.modules()], "it is as it was"
    return {"learning": len(layers), "layers": count}


def with_vae(name, other):
    """Whether a MODEL takes the VAE of another, or what is said."""
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.vaes import tiny_vae

    with torch.inference_mode():
        model, vae = tiny_model(name), tiny_vae(TINY[other].vae)
    of = part("nodes.host.graph_model").GraphModel(model)
    try:
        part("nodes.host.model_encoders").PlainEncoders(of.title, of.space, None, vae)
    except part("trainer_core.errors").InputError as error:
        return [error.found, error.expected, error.remedy]
    return None


def tiled_and_whole(name):
    """Latents of an image by the encoders of a run and by VAEEncodeTiled, of one tile and of many.

    Gives the largest differences, relative to the largest latent.
    """
    from tiny_models.denoisers import tiny_model
    from tiny_models.sizes import TINY
    from tiny_models.vaes import tiny_vae

    import nodes

    with torch.inference_mode():
        model, vae = tiny_model(name), tiny_vae(TINY[name].vae)
        pixels = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0)) * 2 - 1
        of = part("nodes.host.graph_model").GraphModel(model)
        encoders = part("nodes.host.model_encoders").PlainEncoders(of.title, of.space, None, vae)
        found = encoders.encode_image(pixels)
        image, apart = ((pixels + 1) / 2).movedim(1, -1), []
        for tile, overlap in ((512, 64), (64, 16)):
            (latent,) = nodes.VAEEncodeTiled().encode(vae, image, tile, overlap)
            tiled = encoders.space.normalized(latent["samples"]).reshape(found.shape)
            apart.append(float((tiled - found).abs().max() / found.abs().max()))
    return apart


VAES = [("flux", "wan21"), ("wan21", "flux"), ("qwen_image", "flux"), ("sdxl", "sd15")]


def main(folder, names):
    results, kernel = {}, torch.nn.functional.scaled_dot_product_attention
    errors = part("trainer_core.errors").TrainerError
    for name, change in json.loads(names.read_text()):
        try:
            found = trained(name, change)
            changed = torch.nn.functional.scaled_dot_product_attention is not kernel
            assert changed == (CHANGES[change] is global_kernel), "it is as the pack left it"
        except errors as error:
            found = {"error": [error.found, error.expected, error.remedy]}
        finally:
            torch.nn.functional.scaled_dot_product_attention = kernel
        results[f"{name} {change}"] = found
    results["vaes"] = [with_vae(*each) for each in VAES]
    results["tiled"] = [tiled_and_whole(name) for name in ("sdxl", "flux", "qwen_image")]
    (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


main(*map(Path, sys.argv[1:]))
