"""One training step of ComfyUI's own Train LoRA and of ours, with noise and noise level given.

ComfyUI's interpreter imports this. The step of ComfyUI's is made by its own parts: adapters,
checkpointing, guider and `TrainSampler.fwd_bwd`.
"""

import contextlib
from dataclasses import dataclass

import comfy.model_management
import torch
from comfy_extras import nodes_train
from loaded_pack import part

import nodes

CAPTION, RANK, GUIDANCE, SIZE = "a red diamond", 4, 3.5, 0.3
"""``SIZE`` is the standard deviation of the adapters' second factors, which begin at 0."""


@dataclass(frozen=True)
class GivenStep:
    """What both are given.

    Attributes:
        latents: As the denoiser sees them, float32.
        noise: Of the same shape.
        sigma: Share of noise on the straight path.
        conditioning: ComfyUI's CONDITIONING of one text.
        straight: Whether ComfyUI's sigma is that share; else latents are x_0 + sigma noise.
        parameterization: The trainer's own.
        options: What else a model that takes guidance is told.
    """

    latents: torch.Tensor
    noise: torch.Tensor
    sigma: float
    conditioning: list
    straight: bool
    parameterization: object
    options: dict

    @property
    def level(self):
        """ComfyUI's sigma."""
        return self.sigma if self.straight else self.sigma / (1 - self.sigma)

    def noisy(self):
        """The latents as ComfyUI's samplers have them, float64."""
        kept = 1 - self.sigma if self.straight else 1.0
        return kept * self.latents.double() + self.level * self.noise.double()

    def target(self):
        """What the raw output is compared with, float64."""
        latents, noise = self.latents.double(), self.noise.double()
        if self.straight:
            return noise - latents
        if self.parameterization.name == "eps":
            return noise
        sigma = torch.tensor([self.sigma], dtype=torch.float64)
        return self.parameterization.target(latents, noise, sigma)


def given_step(model, clip, side, sigma):
    """Draw what both are given, for images of a side."""
    graph = part("nodes.host.graph_model").GraphModel(model)
    space = graph.space
    with torch.inference_mode(False), torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        frames = [1] * (space.dimensions - 2)
        shape = (1, space.channels, *frames, *[side // space.pixels] * 2)
        latents, noise = (torch.randn(shape, generator=generator) for _ in range(2))
    conditioning = nodes.CLIPTextEncode().encode(clip, CAPTION)[0]
    options = {"guidance": GUIDANCE} if graph.guided else {}
    known = (graph.straight, graph.parameterization, options)
    return GivenStep(latents, noise, sigma, conditioning, *known)


def drawn_factors(denoiser):
    """Factors of a LoRA on each Linear and Conv2d: name to ``up`` and ``down``, float32."""
    generator = torch.Generator().manual_seed(5)
    found = {}
    for name, module in denoiser.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            rows, inputs = module.weight.shape[0], module.weight[0].numel()
            if min(rows, inputs) < RANK:
                continue
            up = SIZE * torch.randn(rows, RANK, generator=generator)
            down = torch.randn(RANK, inputs, generator=generator) / inputs**0.5
            found[name] = {"up": up, "down": down}
    return found


class _OneStep(nodes_train.TrainSampler):
    """ComfyUI's sampler that trains, for one step with the noise and the level that it is given."""

    def __init__(self, step):
        super().__init__(torch.nn.MSELoss(), None, training_dtype=torch.float32)
        self.step, self.loss = step, None

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image, *_, **__):
        model_wrap.conds = nodes_train.process_cond_list(model_wrap.conds)
        level = torch.tensor([self.step.level])
        cond, noise = model_wrap.conds["positive"], self.step.noise.clone()
        words = (level, noise, latent_image.clone(), cond, [0], extra_args, 1)
        self.loss = float(self.fwd_bwd(model_wrap, *words))
        return torch.zeros_like(latent_image)


@dataclass
class CoreStep:
    """A step of ComfyUI's Train LoRA.

    Attributes:
        model: The MODEL; the step is made on a copy, as ComfyUI makes it.
        given: Latents, noise and text.
        factors: Of the adapters (`drawn_factors`).
        depth: Of gradient checkpointing; 0 for none.
    """

    model: object
    given: GivenStep
    factors: dict
    depth: int

    def run(self):
        """Loss, and the gradients of the factors by name."""
        with torch.inference_mode(False):
            mp = self.model.clone(force_deepcopy=True)
            mp.set_model_compute_dtype(torch.float32)
            mp.model.requires_grad_(False).train()
            held, _ = nodes_train._setup_lora_adapters(mp, {}, "LoRA", torch.float32, RANK)
            places = self._places(held)
            blocks = []
            if self.depth:
                blocks = nodes_train.find_modules_at_depth(mp.model.diffusion_model, self.depth)
            for each in blocks:
                nodes_train.patch(each)
            comfy.model_management.load_models_gpu([mp], memory_required=1e20, force_full_load=True)
            sampler = _OneStep(self.given)
            guider = nodes_train.TrainGuider(mp)
            guider.set_conds(self.given.conditioning)
            with part("nodes.host.comfy_model_management").in_training():
                nodes_train._run_training_loop(guider, sampler, self._raw(mp), 1, 0, False, False)
            found = {name: each.grad for name, each in places.items()}
            return sampler.loss, found

    def _raw(self, mp):
        return mp.model.process_latent_out(self.given.latents.clone())

    def _places(self, held):
        places = {}
        for name, factors in self.factors.items():
            for factor, values in factors.items():
                parameter = held[f"diffusion_model.{name}.lora_{factor}.weight"]
                parameter.data.copy_(values.reshape(parameter.shape))
                places[f"{name}.{factor}"] = parameter
        return places


def our_step(model, given, factors, checkpointing):
    """Loss and gradients of the factors by name, with a run's own parts."""
    family = part("nodes.host.graph_family").graph_family(model)
    conditioning = part("nodes.host.conditioning").stored_conditioning(given.conditioning, CAPTION)
    config = part("trainer_core.config").AdapterConfig(kind="lora", rank=RANK, alpha=1.0)
    with contextlib.ExitStack() as at_end, torch.inference_mode(False):
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)
        adapter = part("trainer_core.adapters").attach(denoiser, config, list(factors), seed=0)
        at_end.callback(adapter.detach)
        if checkpointing:
            family.layers.enable_checkpointing(denoiser)
        held = dict(adapter.named_parameters())
        places = {
            f"{name}.{factor}": held[f"{name}.{ours}"]
            for name in factors
            for factor, ours in (("up", "lora_up"), ("down", "lora_down"))
        }
        for name, parameter in places.items():
            values = factors[name.rpartition(".")[0]][name.rpartition(".")[2]]
            parameter.data.copy_(values.reshape(parameter.shape))
        loss = _our_loss(family, denoiser, given, conditioning)
        loss.backward()
        return loss.item(), {name: each.grad for name, each in places.items()}


def _our_loss(family, denoiser, given, conditioning):
    step = part("trainer_core.training.step.micro_batch")
    kind = part("trainer_core.types").Batch
    batch = kind(("given",), (0,), given.latents.clone(), (), (conditioning,))
    points = step.noisy_points(
        batch, (given.sigma,), given.noise, family.prediction.parameterization
    )

    def predict(*inputs):
        return family.prediction.predict(denoiser, *inputs, GUIDANCE)

    maker = step.MicroBatchLoss(
        load=lambda step, micro: batch,
        load_preserved=lambda step, micro: None,
        predict=predict,
        sigma_at=lambda batch, place: given.sigma,
        seed=0,
        part=(0, 1),
        device=torch.device("cpu"),
        parameterization=family.prediction.parameterization,
    )
    return maker.loss(points)
