"""Runs inside ComfyUI's interpreter: encode with CLIP and VAE objects of ComfyUI's own loaders.

FOLDER has the model files, ``images.safetensors`` (pixels in [-1, 1] and control images as bytes)
and ``jobs.json``; it gets ``results.safetensors`` and ``results.json``.
"""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from loaded_pack import part
from said import Said


class Loaders:
    """ComfyUI's own loaders at float32, with the sizes that the jobs name."""

    def __init__(self, folder, jobs):
        import comfy.sd
        import torch
        from small_qwen import small_qwen

        self.folder, self.sd = folder, comfy.sd
        self.options = {
            "dtype": torch.float32,
            "model_config": jobs["clip_l"],
            "clip_l_model_config": jobs["clip_l"],
            "t5xxl_model_config": jobs["t5"],
            "qwen25_7b_model_config": jobs["qwen"],
            "qwen25_7b_class": small_qwen(jobs["vision"]),
        }

    def clip(self, kind, *names):
        return self.sd.load_clip(
            [str(self.folder / f"{name}.safetensors") for name in names],
            clip_type=getattr(self.sd.CLIPType, kind),
            model_options=dict(self.options),
        )

    def sd3(self):
        """SD3's of CLIP-L and T5; the loader knows only a T5 of full size as SD3's."""
        from comfy.text_encoders import sd3_clip

        target = SimpleNamespace(
            params={},
            clip=sd3_clip.sd3_clip(clip_l=True, clip_g=False, t5=True),
            tokenizer=sd3_clip.SD3Tokenizer,
        )
        return self.sd.CLIP(target, model_options=dict(self.options))

    def vae(self, name, change=lambda tensors: tensors):
        from safetensors.torch import load_file

        return self.sd.VAE(sd=change(load_file(self.folder / f"{name}.safetensors")))


class Session:
    """What is found, by name."""

    def __init__(self, make, images, jobs):
        self.make, self.images, self.jobs = make, images, jobs
        self.expected = part("trainer_core.errors").TrainerError
        self.tensors, self.facts = {}, {}

    def controls(self, names):
        from PIL import Image

        return [Image.fromarray(self.images[name].numpy()) for name in names]

    def keep(self, name, tensors):
        for key, tensor in tensors.items():
            ordinary = not (tensor.is_inference() or tensor.requires_grad)
            self.facts.setdefault("not ordinary", [])
            if not ordinary or tensor.dtype.itemsize != 4 or not tensor.is_contiguous():
                self.facts["not ordinary"].append(f"{name} {key}")
            self.tensors[f"{name}/{key}"] = tensor

    def text(self, name, family, clip, job):
        encoders = self.make(family, job["variant"], clip, None, job["length"]).open()
        found = encoders.encode_text(job["caption"], self.controls(job.get("controls", [])))
        self.keep(name, found)

    def error(self, name, action):
        try:
            action()
        except self.expected as error:
            self.facts[f"error {name}"] = [type(error).__name__, *error.args]
        else:
            self.facts[f"error {name}"] = None


def seen_by_model(session, clip, file, controls):
    """A conditioning of a graph's MODEL of that name, as KSampler would be given it."""
    import torch
    from tiny_models import denoisers

    sizes, width = denoisers.TINY["qwen_image"], session.jobs["qwen"]["hidden_size"]
    unet = {**sizes.unet, "joint_attention_dim": width}
    denoisers.TINY = {"qwen_image": dataclasses.replace(sizes, unet=unet)}
    model = denoisers.tiny_model("qwen_image")
    model.cached_patcher_init = (None, (f"models/{file}.safetensors",))
    host, known, texts = part("nodes.host.graph_family"), {}, {}
    family = host.graph_family(model)
    assert family.text.shown == {"edit_plus"}
    location = SimpleNamespace(variant="edit_plus", reads_tokens=False)
    source = host.encoders_of(model, clip, None)(family, location)
    for shown in ((), controls):
        text = source.encode_text(session.jobs["instruction"], session.controls(shown))
        restored = part("nodes.host.conditioning").restored_conditioning
        known[bool(shown)], texts[bool(shown)] = restored(text, torch.device("cpu")), text
    session.tensors[f"bare model {file}/text"] = known[False]["cross_attn"]
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as at_end:
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)
        given = (denoiser, torch.ones(1, 16, 8, 8), torch.tensor([0.5]))
        for name, text in (("seen", texts[True]), ("bare", texts[False])):
            found = family.prediction.predict(*given, [text], [torch.ones(1, 16, 8, 8)], 1.0)
            session.tensors[f"{name} prediction {file}/pixels"] = found
    location.variant = "generate"
    assert host.encoders_of(model, clip, None)(family, location).sight is None
    return known[True]


def encode_texts(session, clips):
    for index, job in enumerate(session.jobs["texts"]):
        session.text(f"text {index}", job["family"], clips[job["family"]], job)
    flux, qwen = clips["flux"], clips["qwen_image"]
    from comfy_extras import nodes_qwen

    import nodes

    for caption in session.jobs["captions"]:
        for name, clip in clips.items():
            ((text, extra),) = nodes.CLIPTextEncode().encode(clip, caption)[0]
            session.tensors[f"node {name} {caption}/text"] = text
            if name == "flux":
                session.tensors[f"node {name} {caption}/pooled"] = extra["pooled_output"]
    images = {
        name: image[None].float() / 255 for name, image in session.images.items() if image.ndim == 3
    }
    one, two = images["wide"], images["tall"]
    caption = session.jobs["instruction"]
    ((text, _),) = nodes_qwen.TextEncodeQwenImageEdit.execute(qwen, caption, image=one).result[0]
    session.tensors["node edit/text"] = text
    plus = nodes_qwen.TextEncodeQwenImageEditPlus.execute(qwen, caption, image1=one, image2=two)
    session.tensors["node edit_plus/text"] = plus.result[0][0][0]
    for name in ("Edit", "EditPlus"):
        node = getattr(nodes_qwen, f"TextEncodeQwenImage{name}")
        session.tensors[f"bare node {name}/text"] = node.execute(qwen, caption).result[0][0][0]
    for name, file in (("edit", "qwen_image_edit_fp8"), ("edit_plus", "qwen_image_edit_2511")):
        model = seen_by_model(session, qwen, file, [["wide"], ["wide", "tall"]][name != "edit"])
        session.tensors[f"model {name}/text"] = model["cross_attn"]
    session.facts["tokens"] = {
        caption: [token for token, _ in qwen.tokenize(caption)["qwen25_7b"][0]]
        for caption in session.jobs["captions"]
    }
    session.facts["t5 tokens"] = [
        len(flux.tokenize(caption)["t5xxl"][0]) for caption in session.jobs["captions"]
    ]


def encode_images(session, vaes):
    import comfy.latent_formats
    import torch

    formats = {"flux": comfy.latent_formats.Flux(), "qwen_image": comfy.latent_formats.Wan21()}
    pixels = session.images["pixels"]
    for family, vae in vaes.items():
        encoders = session.make(family, "generate", None, vae, None)
        latents = encoders.open().encode_image(pixels)
        session.keep(f"vae {family}", {"latents": latents})
        session.keep(f"vae {family}", {"pixels": encoders.decoder()(latents)})
        raw = torch.cat([vae.encode(p[None]) for p in ((pixels + 1) / 2).movedim(1, -1)])
        session.tensors[f"vae {family}/raw"] = raw
        session.tensors[f"vae {family}/format"] = formats[family].process_in(raw)
        session.error(
            f"size {family}",
            lambda encoders=encoders: encoders.open().encode_image(pixels[..., :28]),
        )


def encode_transparency(session, loaders, plain):
    """Qwen-Image-Layered's VAE, which reads four channels of a pixel, and FLUX.1 Fill's mask."""
    fill = session.make("flux", "fill", None, loaders.vae("flux_vae"), None)
    session.tensors["vae fill/latents"] = fill.open().encode_image(session.images["rgba"])
    vae, pixels = loaders.vae("qwen_layered_vae"), session.images["rgba"]
    encoders = session.make("qwen_image", "layered", None, vae, None)
    latents = encoders.open().encode_image(pixels)
    session.keep("vae layered", {"latents": latents, "pixels": encoders.decoder()(latents)})
    for name, variant, wrong in (("layered", "layered", plain), ("plain", "generate", vae)):
        session.error(
            f"{name} vae", lambda v=variant, w=wrong: session.make("qwen_image", v, None, w, None)
        )


def identities(session, loaders, clips, vaes):
    import comfy.sd
    import torch

    def identity(clip=clips["flux"], vae=vaes["flux"], variant="generate", length=None):
        return session.make("flux", variant, clip, vae, length).identity

    found = {"first": identity()}
    again = loaders.clip("FLUX", "clip_l", "t5xxl")
    # The file lacks it, so that it is whatever was in memory; FLUX does not use it.
    again.cond_stage_model.clip_l.transformer.text_projection.weight.fill_(7)
    found["second load"] = identity(again)
    loaded = loaders.vae("flux_vae")
    found["vae second load"] = identity(vae=loaded)
    found["explicit length"] = identity(length=256)
    found["length"] = identity(length=512)
    found["variant"] = identity(variant="edit")
    found["no vae"] = identity(vae=None)
    changed = loaders.clip("FLUX", "clip_l", "t5xxl")
    weight = changed.cond_stage_model.t5xxl.transformer.shared.weight
    weight.data[:, 0] += 1e-3
    found["weight"] = identity(changed)
    loaded.first_stage_model.to(torch.bfloat16)
    found["precision"] = identity(vae=loaded)
    skipped = clips["flux"].clone()
    skipped.clip_layer(-2)
    found["layer"] = identity(skipped)
    path = "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj"
    width = session.jobs["clip_l"]["hidden_size"]
    lora = {
        f"{path}.lora_up.weight": torch.ones(width, 2),
        f"{path}.lora_down.weight": torch.ones(2, width),
    }
    patched = comfy.sd.load_lora_for_models(None, clips["flux"], lora, 1.0, 1.0)[1]
    found["lora"] = identity(patched)
    weaker = comfy.sd.load_lora_for_models(None, clips["flux"], lora, 1.0, 0.5)[1]
    found["lora strength"] = identity(weaker)
    # Now the patched weights take the place of the others, which the plain CLIP still stands for.
    session.text("lora", "flux", patched, {"variant": "generate", "length": 256, "caption": "a"})
    session.text("plain", "flux", clips["flux"].clone(), session.jobs["texts"][0])
    session.text("lora", "flux", patched, {"variant": "generate", "length": 256, "caption": "a"})
    session.facts["patched in place"] = len(patched.patcher.backup)
    found["first, while patched"] = identity()
    found["lora, while patched"] = identity(patched)
    session.facts["identities"] = found
    bypassed = comfy.sd.load_bypass_lora_for_models(None, clips["flux"], lora, 1.0, 1.0)[1]
    session.error("bypass", lambda: session.make("flux", "generate", bypassed, None, None))


def errors(session, loaders, clips, vaes):
    import comfy.taesd.taesd

    def four_channels(tensors):
        tensors = dict(tensors)
        tensors["decoder.conv_in.weight"] = tensors["decoder.conv_in.weight"][:, :4]
        for name in ("encoder.conv_out.weight", "encoder.conv_out.bias"):
            tensors[name] = tensors[name][:8]
        return tensors

    taesd = comfy.taesd.taesd.TAESD(latent_channels=16).state_dict()
    wrong = {
        "flux clip_l": ("flux", loaders.clip("STABLE_DIFFUSION", "clip_l"), None),
        "flux sd3": ("flux", loaders.sd3(), None),
        "flux qwen": ("flux", clips["qwen_image"], None),
        "qwen flux": ("qwen_image", clips["flux"], None),
        "qwen hunyuan": ("qwen_image", loaders.clip("HUNYUAN_IMAGE", "qwen_vl"), None),
        "flux qwen vae": ("flux", None, vaes["qwen_image"]),
        "qwen flux vae": ("qwen_image", None, vaes["flux"]),
        "flux sd vae": ("flux", None, loaders.vae("flux_vae", four_channels)),
        "flux taesd": ("flux", None, loaders.sd.VAE(sd=taesd)),
        "flux empty vae": ("flux", None, loaders.sd.VAE(sd={})),
    }
    for name, (family, clip, vae) in wrong.items():
        session.error(name, lambda f=family, c=clip, v=vae: session.make(f, "generate", c, v, None))
    unconnected = session.make("flux", "generate", None, None, None)
    session.facts["unconnected"] = unconnected.identity
    session.error("no clip", lambda: unconnected.open().encode_text("a", []))
    session.error("no vae", lambda: unconnected.open().encode_image(session.images["pixels"]))
    session.error("no decoder", unconnected.decoder)
    session.error("family", lambda: session.make("wan", "generate", None, None, None))
    session.error("variant", lambda: session.make("flux", "edit_plus", None, None, None))
    edit = session.make("qwen_image", "edit", clips["qwen_image"], None, None).open()
    wide = session.controls(["wide"])
    session.error("controls", lambda: edit.encode_text("a", [*wide, *wide]))
    session.error("image token", lambda: edit.encode_text("a <|image_pad|>", wide))


def main():
    (argument,) = sys.argv[1:]
    encoders = part("nodes.host.family_encoders")
    registry = part("trainer_core.families.registry")
    bases = part("trainer_core.weights.base_location")

    def make(family, variant, *given):
        """With names for family and variant; "wan" has no encoders in the graph."""
        known = registry.get_family("flux" if family == "wan" else family)
        if family == "wan":
            known = dataclasses.replace(known, name="wan", graph=None)
        place = bases.BaseLocation(Path(), Path(), variant, 0, "", False)
        return encoders.graph_encoders(known, place, *given)

    import torch
    from safetensors.torch import load_file, save_file

    folder = Path(argument)
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    session = Session(make, load_file(folder / "images.safetensors"), jobs)
    # As ComfyUI runs every node.
    with torch.inference_mode():
        loaders = Loaders(folder, jobs)
        with Said("missing") as complaints:
            clips = {
                "flux": loaders.clip("FLUX", "clip_l", "t5xxl"),
                "qwen_image": loaders.clip("QWEN_IMAGE", "qwen_vl"),
            }
            vaes = {"flux": loaders.vae("flux_vae"), "qwen_image": loaders.vae("qwen_vae")}
        session.facts["missing"] = complaints.messages
        encode_texts(session, clips)
        encode_images(session, vaes)
        encode_transparency(session, loaders, vaes["qwen_image"])
        identities(session, loaders, clips, vaes)
        errors(session, loaders, clips, vaes)
    tensors = {name: tensor.float().contiguous() for name, tensor in session.tensors.items()}
    save_file(tensors, folder / "results.safetensors")
    (folder / "results.json").write_text(json.dumps(session.facts), encoding="utf-8")


if __name__ == "__main__":
    main()
