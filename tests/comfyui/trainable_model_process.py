"""Runs inside ComfyUI's interpreter: gradients through a MODEL, and what is left of it afterwards.

Arguments: FOLDER NAME .... FOLDER gets ``results.json``. The reference is torch's own autograd
through the same MODEL with ordinary weights, where torch copies every tensor that is changed in
place.
"""

import contextlib
import json
import math
import sys
from pathlib import Path

import torch
from loaded_pack import part

LISTS = (
    *("input_blocks", "middle_block", "output_blocks"),
    *("double_blocks", "single_blocks", "joint_blocks", "transformer_blocks"),
    *("layers", "noise_refiner", "context_refiner", "blocks"),
    *("double_stream_blocks", "single_stream_blocks", "double_layers", "single_layers"),
    *("text_transformer_blocks", "visual_transformer_blocks"),
)

SOUNDS = {"ltxav": (8, 3, 16), "ltxav_23": (8, 3, 16), "minimax_h3": (32, 2, 2)}
"""Shapes of the latents of sound."""


def ordinary(value):
    """Copies that autograd may keep of what a model was called with."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(ordinary(each) for each in value)
    return value


class Sampled:
    """A tiny MODEL as ComfyUI's executor makes it, and how KSampler calls its denoiser."""

    def __init__(self, name):
        import comfy.nested_tensor
        from tiny_models.denoisers import tiny_model
        from tiny_models.sizes import SOUNDING, TINY
        from tiny_models.texts import tiny_clip
        from tiny_models.vaes import tiny_vae

        import nodes

        # Of a model that makes video and sound both may be sampled.
        name, sound = name.removesuffix(" with sound"), name.endswith(" with sound")
        sizes = {**TINY, **SOUNDING}[name]
        with torch.inference_mode():
            self.model = tiny_model(name)
            vae, side = tiny_vae(sizes.vae), sizes.pixels
            image = torch.linspace(0, 1, side * side * 3).view(1, side, side, 3)
            self.latent = nodes.VAEEncode().encode(vae, image)[0]
            if sound:
                heard = torch.linspace(-1, 1, math.prod(SOUNDS[name])).view(1, *SOUNDS[name])
                both = comfy.nested_tensor.NestedTensor([self.latent["samples"], heard])
                self.latent = {"samples": both}
            self.text = nodes.CLIPTextEncode().encode(tiny_clip(sizes.text), "a red diamond")[0]
        calls, denoiser = [], self.model.model.diffusion_model
        own = denoiser.forward

        def noted(*args, **options):
            calls.append((args, options))
            return own(*args, **options)

        denoiser.forward = noted
        self.drawn()
        del denoiser.forward
        args, options = calls[0]
        self.args = ordinary(list(args))
        self.options = {name: ordinary(value) for name, value in options.items()}
        self.options["transformer_options"] = {}
        self.lists = [each for each in LISTS if hasattr(denoiser, each)]

    def drawn(self, model=None):
        """Latents of one step of KSampler."""
        import nodes

        with torch.inference_mode():
            words = (1, 1, 1.0, "euler", "simple", self.text, self.text, self.latent, 1.0)
            samples = nodes.common_ksampler(model or self.model, *words)[0]["samples"]
            return samples if samples.is_nested else samples.clone()


def adapted(denoiser, sampled):
    """The output and all gradients with an adapter on every Linear."""
    attach = part("trainer_core.adapters.attachment").attach
    config = part("trainer_core.config").AdapterConfig
    # Krea 2 has a Linear of one output.
    adapter = attach(denoiser, config(kind="lora", rank=1, targets="all_linear"), seed=1)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    # Of a model that makes video and sound each is a latent.
    latents = sampled.args[0]
    several = isinstance(latents, list)
    inputs = [each.clone().requires_grad_() for each in (latents if several else [latents])]
    outputs = denoiser(inputs if several else inputs[0], *sampled.args[1:], **sampled.options)
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    loss = sum(each.float().square().sum() for each in outputs)
    found = torch.autograd.grad(loss, [*inputs, *adapter.parameters()], allow_unused=True)
    adapter.detach()
    return [torch.cat([each.detach().flatten() for each in outputs]), *found]


def borrowed(sampled, checkpointing=""):
    """The same through the borrowed MODEL."""
    with part("nodes.host.trainable_model").borrowed_denoiser(sampled.model, sampled.lists) as held:
        enable = part("nodes.host.checkpointed_forward").enable_checkpointing
        if checkpointing == "torch":
            enable(held.denoiser, sampled.lists)
        elif checkpointing:
            module = part("trainer_core.offload.checkpointed_blocks")
            blocks = part("nodes.host.unchanged_inputs").blocks_of(held.denoiser, sampled.lists)
            numbered = dict(enumerate(blocks))
            calls = module.CheckpointedBlocks(numbered, {0}, None, lambda: 0)
            # As if it had chosen the others to keep their activations; the first is measured.
            calls._chosen_for.update(dict.fromkeys(range(1, len(numbered)), 10**9))
            enable(held.denoiser, sampled.lists, calls)
        return adapted(held.denoiser, sampled)


def by_autograd(name, sampled):
    """The same by torch alone, through ordinary weights."""
    from tiny_models.denoisers import tiny_model

    engine = part("nodes.host.comfy_model_management")
    device = sampled.model.load_device
    denoiser = tiny_model(name.removesuffix(" with sound")).model.diffusion_model.to(device)
    assert not any(each.is_inference() for each in denoiser.parameters())
    copying = torch.autograd.graph.allow_mutation_on_saved_tensors()
    with engine.in_training(), engine.differentiable_kernels(), copying:
        return adapted(denoiser, sampled)


def equal(some, others):
    return all(
        one is other if one is None or other is None else torch.equal(one, other)
        for one, other in zip(some, others, strict=True)
    )


def distance(some, others):
    """Between all numbers of two lists, over the size of the second."""
    pairs = [(a, b) for a, b in zip(some, others, strict=True) if a is not None or b is not None]
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    return (apart / sum(float(b.double().square().sum()) for _, b in pairs)) ** 0.5


LOADING = {"comfy_patched_weights", "comfy_force_cast_weights", "weight_function", "bias_function"}
"""What ComfyUI notes on an op when it loads or unloads it."""


def state_of(model):
    """What a MODEL is made of, by identity, and its numbers."""
    import comfy.model_management
    import comfy.quant_ops

    inner = model.model
    modules = [
        (
            *(name, id(each), type(each).__name__, id(type(each)), each.training),
            *(sorted(vars(each).keys() - LOADING), list(each._forward_hooks)),
        )
        for name, each in inner.diffusion_model.named_modules()
    ]
    tensors = [
        # ComfyUI makes new ones of those that it has patched.
        (name, None if model.patches else id(each), each.dtype, each.requires_grad)
        for name, each in (*inner.named_parameters(), *inner.named_buffers())
    ]
    numbers = [
        (name, each.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
        for name, each in inner.state_dict().items()
        if each.numel() and each.dim()
    ]
    rest = [
        *(id(inner.model_sampling), comfy.model_management.in_training, id(comfy.quant_ops.ck)),
        *(sorted(model.object_patches), sorted(model.patches), len(model.backup)),
        getattr(inner, "current_patcher", None),
    ]
    return {"modules": modules, "tensors": tensors, "numbers": numbers, "rest": rest}


def differences(before, after):
    """What differs, with its first places."""
    found = {}
    for name, one in before.items():
        if one != after[name]:
            pairs = zip(one, after[name], strict=True)
            found[name] = [f"{a}, then {b}"[:600] for a, b in pairs if a != b][:3]
    return found


def gradients(name):
    sampled = Sampled(name)
    before = state_of(sampled.model)
    plain = borrowed(sampled)
    left = differences(before, state_of(sampled.model))
    reference = by_autograd(name, sampled)
    return {
        "lists": sampled.lists,
        "torch": equal(plain, borrowed(sampled, "torch")),
        "called": equal(plain, borrowed(sampled, "called")),
        "output": distance(plain[:1], reference[:1]),
        "gradient": distance(plain[1:], reference[1:]),
        "trained": sum(each is not None for each in plain[1:]),
        "left": [left, differences(before, state_of(sampled.model))],
    }


class Cancelled(BaseException):
    pass


def ways_out(name):
    """Every way to leave a run, with and without a LoRA on the MODEL."""
    borrow = part("nodes.host.trainable_model").borrowed_denoiser
    sampled, found = Sampled(name), {}
    plain = sampled.model
    patched = plain.clone()
    with torch.inference_mode():
        names = [key for key in plain.model_state_dict() if key.endswith(".weight")]
        held = plain.model_state_dict()
        chosen = [key for key in names if held[key].dim() == 2][:6]
        torch.manual_seed(7)
        patches = {key: ("diff", (torch.randn(held[key].shape) * 0.1,)) for key in chosen}
    patched.add_patches(patches)
    pictures = {"plain": sampled.drawn(plain), "patched": sampled.drawn(patched)}
    assert not torch.equal(*pictures.values())
    sampled.drawn(plain)
    for kind, model in (("plain", plain), ("patched", patched)):
        for way in (None, ValueError, Cancelled):
            before = state_of(model)
            outputs = []
            with contextlib.suppress(way or ValueError), borrow(model, sampled.lists) as lent:
                with torch.no_grad():
                    outputs.append(lent.denoiser(*ordinary(sampled.args), **sampled.options))
                lent.denoiser.register_forward_hook(lambda *given: None)
                lent.denoiser.train()
                if way is not None:
                    # An adapter that nobody has taken off.
                    attach_one(lent.denoiser)
                    raise way("in the middle of a step")
            found[f"{kind} {way.__name__ if way else 'end'}"] = {
                "left": differences(before, state_of(model)),
                "same picture": bool(torch.equal(sampled.drawn(model), pictures[kind])),
                "output": float(outputs[0].sum()),
            }
            # What the next run finds loaded is the MODEL without the LoRA.
            sampled.drawn(plain)
    return found


def attach_one(denoiser):
    attach = part("trainer_core.adapters.attachment").attach
    config = part("trainer_core.config").AdapterConfig
    attach(denoiser, config(kind="lora", rank=1, targets="all_linear"), seed=1)


def refusals():
    """MODELs that cannot be trained through."""
    from tiny_models.denoisers import tiny_model

    errors = part("trainer_core.errors")
    borrow = part("nodes.host.trainable_model").borrowed_denoiser
    plain, found = tiny_model("flux"), []
    injected, several = plain.clone(), plain.clone()
    injected.set_injections("bypass", [object()])
    several.set_additional_models("multigpu", [plain.clone()])
    for model in (injected, several):
        try:
            with borrow(model):
                found.append("nothing")
        except errors.InputError as error:
            found.append(error.found)
    return found


def raw_output():
    """What ``apply_model`` gives while a MODEL is lent, under a sampling of the graph's own."""
    import comfy_extras.nodes_model_advanced as advanced

    sampled = Sampled("flux")
    model = advanced.ModelSamplingFlux().patch(sampled.model, 1.2, 0.4, 64, 64)[0]
    own = model.get_model_object("model_sampling")
    borrow = part("nodes.host.trainable_model").borrowed_denoiser
    with borrow(model, sampled.lists) as lent:
        x, output = torch.randn(1, 16, 8, 8), torch.randn(1, 16, 8, 8)
        raw = lent.model.model_sampling
        given = raw.calculate_denoised(torch.tensor([0.5]), output, x)
        same = [given is output, raw is not own, raw.shift == own.shift]
    back = model.get_model_object("model_sampling") is own
    own_again = own.calculate_denoised(torch.tensor([0.5]), output, x)
    unchanged = sampled.model.model.model_sampling is sampled.model.get_model_object(
        "model_sampling"
    )
    return [*same, back, not torch.equal(own_again, output), unchanged]


def preferred_attention():
    """What ComfyUI's attention prefers on CUDA: before, while a MODEL is lent, and afterwards."""
    import comfy.ops
    from torch.nn.attention import SDPBackend

    sampled = Sampled("flux")
    # As ComfyUI sets it where there is a GPU.
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
    comfy.ops.SDPA_BACKEND_PRIORITY = kinds
    found = [[each.name for each in kinds]]
    with part("nodes.host.trainable_model").borrowed_denoiser(sampled.model, sampled.lists):
        found.append([each.name for each in comfy.ops.SDPA_BACKEND_PRIORITY])
    found.append([each.name for each in comfy.ops.SDPA_BACKEND_PRIORITY])
    del comfy.ops.SDPA_BACKEND_PRIORITY
    return found


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    import comfy.utils

    comfy.utils.PROGRESS_BAR_ENABLED = False
    found = {
        "gradients": {name: gradients(name) for name in names},
        "ways out": ways_out("flux"),
        "refusals": refusals(),
        "raw": raw_output(),
        "attention": preferred_attention(),
    }
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
