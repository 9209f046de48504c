"""Runs inside ComfyUI's interpreter: runs on tiny MODELs that went through ComfyUI's own nodes.

Arguments: FOLDER CELLS. CELLS is a JSON list of [model, node, inputs]; FOLDER gets
``results.json``: for each the error, or the losses of the run beside those of KSampler's
predictions, and what the run has left. Under "nodes" it lists all nodes of ComfyUI that take a
MODEL and give one.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from graph_model_process import CAPTION, loaded, losses, run_config, write_found, write_image
from loaded_pack import part
from trainable_model_process import differences, state_of

STEPS, RATE = 3, 1e-9
"""A rate at which every layer moves and no prediction does."""
CAPTIONS = (CAPTION, "a large blue circle on a wide green square")


class Tiny:
    """A tiny MODEL with CLIP, VAE and images, and a second one of other weights."""

    def __init__(self, name, folder):
        from tiny_models.denoisers import TINY, tiny_model
        from tiny_models.texts import tiny_clip
        from tiny_models.vaes import tiny_vae

        sizes = TINY[name]
        # So that a UNet's attention on the whole image has more than one token in each tile.
        self.folder, self.side = folder, 128 if name == "sd15" else sizes.pixels
        self.model, self.other = tiny_model(name), tiny_model(name, seed=1)
        self.name, self.clip = name, tiny_clip(sizes.text)
        self.vae = tiny_vae(sizes.vae)
        write_image(folder / "images", self.side, count=2)
        (folder / "images" / "1.txt").write_text(CAPTIONS[1], encoding="utf-8")

    def samples(self):
        """A CONDITIONING, and latents `[1, C, (1,) h, w]` before the model's own scaling."""
        import nodes

        for number, caption in enumerate(CAPTIONS):
            positive = nodes.CLIPTextEncode().encode(self.clip, caption)[0]
            yield positive, self.latent(self.folder / "images" / f"{number}.png")

    def latent(self, file):
        import nodes

        return nodes.VAEEncode().encode(self.vae, pixels_of(file))[0]["samples"]

    def config(self, job, family):
        return run_config(self.folder, job, self.side, family.name)


def pixels_of(file):
    import numpy
    from PIL import Image

    with Image.open(file) as image:
        return torch.from_numpy(numpy.asarray(image.convert("RGB")) / 255.0).float()[None]


EDIT = "qwen_image_edit_2511"


class Pairs(Tiny):
    """Qwen-Image-Edit with a CLIP that sees, and each image as the other one's control image."""

    def __init__(self, name, folder):
        from tiny_models import denoisers

        sizes = denoisers.TINY["qwen_image"]
        unet = {**sizes.unet, "joint_attention_dim": 512}
        edit = dataclasses.replace(sizes, unet=unet)
        denoisers.TINY = {**denoisers.TINY, name: edit}
        super().__init__(name, folder)
        self.clip, place = seeing_clip(), folder / "images"
        for kind, sides in (("training_images", (0, 1)), ("control_images", (1, 0))):
            (place / kind).mkdir()
            for number, shown in enumerate(sides):
                shutil.copyfile(place / f"{shown}.png", place / kind / f"{number}.png")
        for file in place.glob("*.txt"):
            file.rename(place / "training_images" / file.name)
        for file in place.glob("*.png"):
            file.unlink()

    def samples(self):
        from comfy_extras.nodes_edit_model import ReferenceLatent
        from comfy_extras.nodes_qwen import TextEncodeQwenImageEditPlus

        place = self.folder / "images"
        for number, caption in enumerate(CAPTIONS):
            file = place / "control_images" / f"{number}.png"
            shown = TextEncodeQwenImageEditPlus.execute(self.clip, caption, image1=pixels_of(file))
            positive = ReferenceLatent.execute(shown.result[0], {"samples": self.latent(file)})
            yield positive.result[0], self.latent(place / "training_images" / f"{number}.png")

    def config(self, job, family):
        config = super().config(job, family)
        base = config.base.model_copy(update={"variant": "edit_plus"})
        preview = config.preview.model_copy(update={"prompts": []})
        return config.model_copy(update={"base": base, "preview": preview})


def seeing_clip():
    import comfy.sd
    from comfy.text_encoders import qwen_image
    from small_qwen import small_qwen
    from tiny_models.weights import fill

    vision = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_layers": 2}
    language = {"hidden_size": 512, "intermediate_size": 128, "num_hidden_layers": 2}
    language |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    options = {"qwen25_7b_model_config": language, "qwen25_7b_class": small_qwen(vision)}
    target = SimpleNamespace(
        params={}, clip=qwen_image.te(), tokenizer=qwen_image.QwenImageTokenizer
    )
    clip = comfy.sd.CLIP(target, model_options={"dtype": torch.float32, **options})
    fill(clip.cond_stage_model, 0)
    return clip


def patched(tiny, name, given):
    """The MODEL behind a node, whose other inputs are the defaults."""
    import nodes

    if name in PATCHES:
        model = tiny.model.clone()
        PATCHES[name](model)
        return model
    node = nodes.NODE_CLASS_MAPPINGS[name]
    sockets = {"model": tiny.model, "model1": tiny.model, "model2": tiny.other}
    sockets |= {"clip": tiny.clip, "vae": tiny.vae}
    types, words = node.INPUT_TYPES(), {}
    for input_name, (kind, *options) in {**types["required"], **types.get("optional", {})}.items():
        choices = kind if isinstance(kind, list) else options and options[0].get("options")
        default = options[0].get("default") if options else None
        value = given.get(input_name, choices[0] if choices and default is None else default)
        value = MADE[value](tiny) if isinstance(value, str) and value in MADE else value
        words[input_name] = sockets.get(input_name, value)
    words = {key: each for key, each in words.items() if each is not None}
    found = getattr(node if hasattr(node, "execute") else node(), node.FUNCTION)(**words)
    return getattr(found, "result", found)[0]


def a_lora(tiny):
    """As core's Train LoRA hands it on, of three layers."""
    held, torch_seed = {}, torch.Generator().manual_seed(5)
    for name, weight in tiny.model.model.diffusion_model.named_parameters():
        if weight.ndim == 2 and name.endswith(".weight") and len(held) < 6:
            name = f"diffusion_model.{name.removesuffix('.weight')}"
            held[f"{name}.lora_up.weight"] = torch.randn(len(weight), 2, generator=torch_seed)
            down = torch.randn(2, weight.shape[1], generator=torch_seed)
            held[f"{name}.lora_down.weight"] = down * 0.1
    return held


def a_text(tiny):
    import nodes

    return nodes.CLIPTextEncode().encode(tiny.clip, "")[0]


def a_file(kind):
    """A file of a folder that ComfyUI lists, by its name."""

    def made(tiny):
        import folder_paths
        from safetensors.torch import save_file

        folder_paths.add_model_folder_path(kind, str(tiny.folder / kind))
        (tiny.folder / kind).mkdir(exist_ok=True)
        name = f"{tiny.folder.name}.{'safetensors' if kind == 'loras' else 'pt'}"
        if kind == "loras":
            save_file(a_lora(tiny), tiny.folder / kind / name)
        else:
            torch.save(a_hypernetwork(tiny), tiny.folder / kind / name)
        folder_paths.filename_list_cache.clear()
        return name

    return made


def a_hypernetwork(tiny):
    """Of one layer for keys and values as wide as the text."""
    width = 32
    torch.manual_seed(6)
    part = {"linear.0.weight": torch.randn(width, width) * 0.1, "linear.0.bias": torch.zeros(width)}
    facts = {"layer_structure": [1, 1], "activation_func": "linear", "is_layer_norm": False}
    return {**facts, width: [part, part]}


def a_control(tiny):
    """A ControlNet of Qwen-Image's blocks, as its loader makes it."""
    import comfy.model_management
    import comfy.model_patcher
    import comfy.ops
    from comfy_extras.nodes_model_patch import QwenImageBlockWiseControlNet
    from tiny_models.weights import fill

    model = QwenImageBlockWiseControlNet(2, dim=32, operations=comfy.ops.manual_cast)
    fill(model, 3)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.CoreModelPatcher(model, device, device)


def an_image(tiny):
    return torch.linspace(0, 1, tiny.side**2 * 3).view(1, tiny.side, tiny.side, 3)


MADE = {"CONTROL": a_control, "IMAGE": an_image}
MADE |= {
    "loras": a_file("loras"),
    "hypernetworks": a_file("hypernetworks"),
    "LORA": a_lora,
    "TEXT": a_text,
    "OPERATION": lambda tiny: lambda latent, **_: latent,
}


def forwards(model):
    """Forward passes that a pack has put in the place of those of blocks, which are the same."""
    for name, module in model.model.diffusion_model.named_modules():
        if name in ("double_blocks.0", "single_blocks.1", "layers.0", "blocks.1", "middle_block.1"):
            model.add_object_patch(f"diffusion_model.{name}.forward", module.forward)


class Weighted:
    """Weights that were made when the node was run, and changes in place."""

    def __init__(self):
        self.weight = torch.ones(1) * 0.9

    def of_attention(self, out, extra_options):
        out[:, :1] = out[:, :1] * out.mean(1, keepdim=True)
        return out.mul_(self.weight)

    def of_block(self, args, *more):
        if more:
            args = more[0]["original_block"](args)
        args["img"] += args["img"] * self.weight
        args["img"][:, :1] = args["img"][:, :1] * args["img"].mean(1, keepdim=True)
        return args


def weighted(model):
    model.set_model_attn1_output_patch(Weighted().of_attention)
    model.set_model_double_block_patch(Weighted().of_block)
    model.set_model_patch_replace(Weighted().of_block, "dit", "double_block", 0)


def by_block(model):
    """Attention that is another in one block, and of another kind in that of a UNet."""
    of_unet = ("input", 5)

    def weaker(out, options):
        chosen = options["block_index"] == 0 and options.get("block", of_unet) == of_unet
        return out * (0.5 if chosen else 1.0)

    def only_sums(q, k, v, options):
        return q * k.mean(1, keepdim=True) + v.mean(1, keepdim=True)

    model.set_model_attn1_output_patch(weaker)
    model.set_model_attn2_replace(only_sums, *of_unet, 0)


PATCHES = {
    "by block": by_block,
    "no node": lambda model: None,
    "forwards": forwards,
    "weighted": weighted,
}


class Spy:
    """What a run asks a family for, unchanged, with the state of torch's numbers before it."""

    def __init__(self, family):
        self.predict, self.asked = family.prediction.predict, []
        self.family = dataclasses.replace(
            family, prediction=dataclasses.replace(family.prediction, predict=self)
        )

    def __getattr__(self, name):
        return getattr(self.predict, name)

    def __call__(self, transformer, noisy, sigma, texts, controls, guidance):
        if torch.is_grad_enabled():
            told = guidance if self.predict.guided else None
            self.asked.append((noisy.clone(), sigma.clone(), told, torch.get_rng_state()))
        return self.predict(transformer, noisy, sigma, texts, controls, guidance)


@contextlib.contextmanager
def counted_passes():
    """The passes of ComfyUI's model, each with whether it asks for a gradient."""
    import comfy.model_base

    own, found = comfy.model_base.BaseModel.apply_model, []

    def counted(*args, **options):
        found.append(torch.is_grad_enabled())
        return own(*args, **options)

    comfy.model_base.BaseModel.apply_model = counted
    try:
        yield found
    finally:
        comfy.model_base.BaseModel.apply_model = own


class OneStep:
    """A sampler of KSampler's that asks once for what it denoises."""

    def __init__(self, x, state):
        self.x, self.state = x, state

    def sample(self, model, sigmas, extra_args, callback, noise, latent, mask, disable):
        torch.set_rng_state(self.state)
        self.latent, self.denoised = latent, model(self.x(latent), sigmas[:1], **extra_args)
        self.given = self.x(latent)
        return self.denoised

    def max_denoise(self, model, sigmas):
        return True


def loss_by_hand(model, positive, latent, noisy, share, guidance, state):
    """Mean of (prediction - target)^2 of a sample, by KSampler's own denoised latents.

    Denoised latents are a + b * output, and the image is a + b * target.
    """
    import comfy.model_sampling
    from comfy.samplers import CFGGuider

    sampling = model.get_model_object("model_sampling")
    straight = isinstance(sampling, comfy.model_sampling.CONST)
    level = share if straight else share / (1 - share)
    noisy = noisy.reshape(latent.shape) * (1 if straight else 1 + level)
    if guidance is not None:
        positive = [[each[0], {**each[1], "guidance": guidance}] for each in positive]
    guider, step = CFGGuider(model), OneStep(lambda latent: noisy, state)
    guider.set_conds(positive, positive)
    with contextlib.suppress(StopIteration):
        guider.sample(torch.zeros_like(latent), latent, step, torch.tensor([level, 0.0]), seed=0)
    level = torch.tensor([level])
    ones = torch.ones_like(noisy)
    offset = sampling.calculate_denoised(level, 0 * ones, noisy)
    factor = sampling.calculate_denoised(level, ones, noisy) - offset
    # The noise of the run, by ComfyUI's own way to add it.
    zero = sampling.noise_scaling(level, 0 * ones, step.latent)
    noise = (noisy - zero) / (sampling.noise_scaling(level, ones, step.latent) - zero)
    error = ((step.denoised - step.latent) / factor).double()
    return float(error.square().mean()), float(noise.std())


def step_by_hand(model, tiny, noisy, sigma, guidance, state):
    """Loss of a step with its two images in either order, and how large its noise is."""
    samples, found = list(tiny.samples()), []
    for order in (samples, samples[::-1]):
        rows = [
            loss_by_hand(model, *sample, *row, guidance, state)
            for sample, *row in zip(order, noisy.split(1), sigma.tolist(), strict=True)
        ]
        found.append([sum(each) / 2 for each in zip(*rows, strict=True)])
    return found


def moved(file):
    """Layers of an adapter, those that are as they were made, and a name for its numbers."""
    with part("trainer_core.tensors.safetensors_reader").open_tensors(file) as held:
        tensors = {name: held.read(name) for name in sorted(held.tensors)}
    ups = [name for name in tensors if "lora_up" in name or "lora_B" in name]
    still = [name for name in ups if not tensors[name].any()]
    numbers = b"".join(each.float().numpy().tobytes() for each in tensors.values())
    return len(ups), still, hashlib.sha256(numbers).hexdigest()


def trained(tiny, name, given):
    import comfy.model_management
    from tiny_models.denoisers import tiny_model

    family_of = part("nodes.host.graph_family")
    errors, graph_model = part("trainer_core.errors"), part("nodes.host.graph_model").GraphModel
    train = part("trainer_core.training").train
    comfy.model_management.unload_all_models()
    tiny.model = tiny_model(tiny.name, precision=given.pop("precision", "fp32"))
    model = patched(tiny, name, given)
    # As after KSampler.
    comfy.model_management.load_models_gpu([model])
    before, place = state_of(model), tiny.folder / f"{len(list(tiny.folder.iterdir()))}"
    found = {"error": None}
    job = {
        "kind": "lora",
        "checkpointing": given.pop("checkpointing", True),
        "name": "run",
        "steps": STEPS,
        "rate": RATE,
        "training": {"batch_size": 2, "sigma": {"density": "uniform", "min": 0.3, "max": 0.9}},
        "adapter": {"targets": "all_linear", "rank": 1},
    }
    with counted_passes() as passes:
        try:
            spy = Spy(family_of.graph_family(model))
            source = family_of.encoders_of(model, tiny.clip, tiny.vae)
            job["training"]["precision"] = graph_model(model).precision("auto")
            config = tiny.config(job, spy.family)
            output = config.output.model_copy(update={"dir": str(place)})
            config = config.model_copy(update={"output": output})
            result = train(config, make_source=source, family=spy.family)
        except errors.TrainerError as error:
            found["error"] = [error.found, error.expected, error.remedy]
    found["steps"] = sum(len(losses(each.parent)) for each in place.rglob("metrics.jsonl"))
    found["left"] = differences(before, state_of(model))
    found["checks"] = passes.index(True) if True in passes else len(passes)
    if found["error"] is None:
        found["losses"] = losses(result.folder)
        found["by hand"] = [step_by_hand(model, tiny, *each) for each in spy.asked]
        found["layers"], found["still"], found["adapter"] = moved(result.adapters[0])
        found["unread"] = loaded(model, result.adapters[0])[1]
    return found


def takers():
    """All nodes of ComfyUI that take a MODEL and give one."""
    import nodes

    found = []
    for name, node in nodes.NODE_CLASS_MAPPINGS.items():
        types = node.INPUT_TYPES()
        inputs = {**types.get("required", {}), **types.get("optional", {})}.values()
        if "MODEL" in node.RETURN_TYPES and any(each[0] == "MODEL" for each in inputs):
            found.append(name)
    return sorted(found)


def main(folder, cells):
    import nodes

    asyncio.run(nodes.init_builtin_extra_nodes())
    wanted = json.loads(cells.read_text(encoding="utf-8"))
    kept = {}

    def look(name, node, given):
        if name not in kept:
            kept[name] = (Pairs if name == EDIT else Tiny)(name, folder / name)
        return trained(kept[name], node, given)

    named = {
        f"{model} {node} {json.dumps(given)}": (model, node, given) for model, node, given in wanted
    }
    write_found(folder, {"nodes": (), **named}, lambda *cell: look(*cell) if cell else takers())


main(*map(Path, sys.argv[1:]))
