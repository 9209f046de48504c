"""The graph's CLIP and VAE of FLUX.2, used by the pack in ComfyUI's interpreter."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

from loaded_pack import part

logging.disable(logging.WARNING)


def main():
    (argument,) = sys.argv[1:]
    folder = Path(argument)
    encoders = part("nodes.host.family_encoders")
    registry = part("trainer_core.families.registry")
    locate = part("trainer_core.bases.locate").locate_base
    section = part("trainer_core.config").BaseSection
    expected = part("trainer_core.errors").TrainerError
    family = registry.get_family("flux2")

    import comfy.sd
    import torch
    from comfy.text_encoders import flux, z_image
    from safetensors.torch import load_file, save_file

    sizes = json.loads((folder / "sizes.json").read_text())

    def clip(te, tokenizer):
        target = SimpleNamespace(params={}, clip=te, tokenizer=tokenizer)
        options = {"dtype": torch.float32, "qwen3_4b_model_config": sizes}
        state = load_file(folder / "text.safetensors")
        return comfy.sd.CLIP(target, state_dict=[state], model_options=options)

    klein = clip(flux.klein_te(), flux.KleinTokenizer)
    vae = comfy.sd.VAE(sd=load_file(folder / "vae.safetensors"), dtype=torch.float32)
    inputs, results, errors = load_file(folder / "inputs.safetensors"), {}, {}

    def make(base, *given):
        place = locate(section(path=str(folder / f"{base}.safetensors")), family, False, False)
        return encoders.graph_encoders(family, place, *given, None)

    with torch.inference_mode():
        graph = make("klein-base", klein, vae)
        for name in ("short", "long"):
            caption = (folder / f"{name}.txt").read_text()
            results[name] = graph.encode_text(caption)["text_embeddings"]
        results["latents"] = graph.encode_image(inputs["pixels"])
        results["pixels"] = graph.decoder()(results["latents"])
        for name, (base, given) in {
            "dev": ("dev", (klein, None)),
            "z_image": ("klein-base", (clip(z_image.te(), z_image.ZImageTokenizer), None)),
        }.items():
            try:
                make(base, *given)
            except expected as error:
                errors[name] = list(error.args)
        try:
            graph.encode_image(inputs["pixels"][..., :24])
        except expected as error:
            errors["odd"] = list(error.args)
    save_file({n: t.float().contiguous() for n, t in results.items()}, folder / "out.safetensors")
    (folder / "results.json").write_text(json.dumps(errors))


main()
