"""Whole optimizer steps against Diffusers' DreamBooth scripts, written out with its functions.

Each family's small denoiser is trained twice from the same LoRA on the same latents, texts, noise
and levels: by the trainer's own loop, and by the body of Diffusers' script of that family with
PEFT, Diffusers' scheduler and weightings, and torch's AdamW.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    Flux2Pipeline,
    FluxKontextPipeline,
    FluxPipeline,
    QwenImagePipeline,
)
from diffusers.training_utils import (
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from fixtures.small_trainer import small_trainer
from peft import LoraConfig
from torch import Tensor

from tests.fixtures.combinations import rarely
from tests.fixtures.families import record
from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, LossSection, RunConfig
from trainer_core.counters import counter_seed
from trainer_core.families.registry import get_family
from trainer_core.training.optimizers import make_optimizer
from trainer_core.training.step.make_loss import make_learned, make_loss, make_weighting
from trainer_core.training.step.micro_batch import MicroBatchLoss
from trainer_core.types import Batch

CPU = torch.device("cpu")
BATCH, MICRO_BATCHES, STEPS, SEED = 2, 2, 3, 11
GUIDANCE = 3.5
EPS = 1e-4
"""Of AdamW in both; gradients are clipped to a norm of 1. With 1e-8 a gradient next to 0 moves a
weight as far as any other, and so does the rounding of a sum in another order: the weights then
agree to 2e-6, what moved to 2e-5."""


def qwen_image(model, noisy, timesteps, texts, pooled, controls):
    noisy = noisy.unsqueeze(2).permute(0, 2, 1, 3, 4)
    batch, _, channels, height, width = noisy.shape
    packed = QwenImagePipeline._pack_latents(noisy, batch, channels, height, width)
    output = model(
        hidden_states=packed,
        encoder_hidden_states=texts,
        encoder_hidden_states_mask=torch.ones(texts.shape[:2], dtype=torch.long),
        timestep=timesteps / 1000,
        img_shapes=[(1, height // 2, width // 2)] * batch,
        return_dict=False,
    )[0]
    return QwenImagePipeline._unpack_latents(output, height * 8, width * 8, 8).squeeze(2)


def flux(model, noisy, timesteps, texts, pooled, controls):
    pipeline = FluxKontextPipeline if controls else FluxPipeline
    batch, channels, height, width = noisy.shape
    packed = pipeline._pack_latents(noisy, batch, channels, height, width)
    tokens = packed.shape[1]
    places = pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, CPU, torch.float32)
    for control in controls:
        _, _, rows, columns = control.shape
        shown = pipeline._pack_latents(control, batch, channels, rows, columns)
        packed = torch.cat([packed, shown], dim=1)
        others = pipeline._prepare_latent_image_ids(
            batch, rows // 2, columns // 2, CPU, torch.float32
        )
        others[..., 0] = 1
        places = torch.cat([places, others], dim=0)
    output = model(
        hidden_states=packed,
        timestep=timesteps / 1000,
        guidance=torch.tensor([GUIDANCE]).expand(batch),
        pooled_projections=pooled,
        encoder_hidden_states=texts,
        txt_ids=torch.zeros(texts.shape[1], 3),
        img_ids=places,
        return_dict=False,
    )[0][:, :tokens]
    return pipeline._unpack_latents(output, height * 8, width * 8, 8)


def z_image(model, noisy, timesteps, texts, pooled, controls):
    images = list(noisy.unsqueeze(2).unbind(dim=0))
    output = model(images, (1000 - timesteps) / 1000, list(texts), return_dict=False)[0]
    return -torch.stack(output, dim=0).squeeze(2)


def flux2(model, noisy, timesteps, texts, pooled, controls):
    packed, places = Flux2Pipeline._pack_latents(noisy), Flux2Pipeline._prepare_latent_ids(noisy)
    output = model(
        hidden_states=packed,
        timestep=timesteps / 1000,
        guidance=torch.full([1], GUIDANCE).expand(len(noisy)),
        encoder_hidden_states=texts,
        txt_ids=Flux2Pipeline._prepare_text_ids(texts),
        img_ids=places,
        return_dict=False,
    )[0][:, : packed.size(1)]
    return Flux2Pipeline._unpack_latents_with_ids(output, places)


@dataclass(frozen=True)
class Script:
    """One of Diffusers' scripts.

    Attributes:
        family: Whose denoiser it trains.
        predict: Its call of the denoiser: model, noisy latents, timesteps, texts, pooled texts and
            control images, to the velocity.
        controls: Whether images are given control images.
        text: Text tokens; the encoder of FLUX.2 fills texts up to 512.
    """

    family: str
    predict: Callable[..., Tensor]
    controls: bool = False
    text: int = 7


SCRIPTS = {
    "qwen_image": Script("qwen_image", qwen_image),
    "flux": Script("flux", flux),
    "kontext": Script("flux", flux, controls=True),
    "z_image": Script("z_image", z_image),
    "flux2": Script("flux2", flux2, text=512),
}


class Data:
    """What every micro-batch is trained on, and the levels that a script draws."""

    def __init__(self, script: Script, scheme: str) -> None:
        kept = record(script.family)
        generator = torch.Generator().manual_seed(0)
        count = STEPS * MICRO_BATCHES * BATCH
        self.latents = torch.randn(count, *kept.latents, generator=generator)
        self.texts = [kept.conditioning(generator, script.text) for _ in range(count)]
        shapes = kept.controls[:1] if script.controls else ()
        self.controls = [torch.randn(count, *shape, generator=generator) for shape in shapes]
        self.scheduler = FlowMatchEulerDiscreteScheduler()
        u = compute_density_for_timestep_sampling(
            scheme, count, logit_mean=0.0, logit_std=1.0, mode_scale=1.29, generator=generator
        )
        self.indices = (u * self.scheduler.config.num_train_timesteps).long()

    @staticmethod
    def rows(step: int, micro: int) -> slice:
        first = ((step - 1) * MICRO_BATCHES + micro) * BATCH
        return slice(first, first + BATCH)

    def batch(self, step: int, micro: int) -> Batch:
        rows = self.rows(step, micro)
        places = tuple(range(micro * BATCH, (micro + 1) * BATCH))
        controls = tuple(each[rows] for each in self.controls)
        texts = tuple(self.texts[rows])
        return Batch(tuple(map(str, places)), places, self.latents[rows], controls, texts)

    def noise(self, step: int, micro: int) -> Tensor:
        """What the trainer draws; a script draws other numbers of the same kind."""
        made = [
            torch.randn(
                self.latents.shape[1:],
                generator=torch.Generator().manual_seed(counter_seed(SEED, "noise", step, place)),
            )
            for place in range(micro * BATCH, (micro + 1) * BATCH)
        ]
        return torch.stack(made)


@dataclass(frozen=True)
class Trained:
    """The factors of a LoRA before and after, and its layers."""

    start: dict[str, Tensor]
    end: dict[str, Tensor]
    layers: tuple[str, ...]


def ours(script: Script, model, data: Data, loss: LossSection, training):
    """Train with the loop of a run; the LoRA, and each step's loss."""
    family = get_family(script.family)
    adapter = attach(
        model, AdapterConfig(kind="lora", rank=4, alpha=4.0), presets=family.layers.presets
    )
    adapter.train()
    levels = data.scheduler.sigmas[data.indices].tolist()
    taken = iter(levels)
    maker = MicroBatchLoss(
        load=data.batch,
        load_preserved=lambda step, micro: None,
        predict=functools.partial(family.prediction.predict, model, guidance=GUIDANCE),
        sigma_at=lambda batch, place: next(taken),
        seed=SEED,
        part=(0, 1),
        device=CPU,
        loss_function=make_loss(loss),
        sigma_weight=make_weighting(loss, make_learned(loss)),
    )
    trainer = small_trainer(
        RunConfig(training=training),
        lambda step, micro: [maker(step, micro)],
        make_optimizer(training.optimizer, parameter_groups(adapter, training.optimizer)),
    )
    trainer.schedule = lambda step: 1.0
    start = {name: each.detach().clone() for name, each in adapter.named_parameters()}
    results = [trainer.train_step(step)[0].loss for step in range(1, STEPS + 1)]
    end = {name: each.detach() for name, each in adapter.named_parameters()}
    return Trained(start, end, adapter.names), results


def theirs(script: Script, model, data: Data, scheme: str, made: Trained, training):
    """Train as the script does, from the same factors."""
    lora = LoraConfig(r=4, lora_alpha=4, lora_dropout=0.0, target_modules=list(made.layers))
    model.add_adapter(lora)
    state = dict(model.named_parameters())
    weights = {peft_name(name): name for name in made.start}
    with torch.no_grad():
        for peft, name in weights.items():
            state[peft].copy_(made.start[name])
    parameters = [each for each in model.parameters() if each.requires_grad]
    assert len(parameters) == len(weights)
    settings = training.optimizer
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, eps=settings.eps
    )
    losses = []
    for step in range(1, STEPS + 1):
        total = 0.0
        for micro in range(MICRO_BATCHES):
            loss = script_loss(script, model, data, scheme, step, micro)
            (loss / MICRO_BATCHES).backward()
            total += loss.item() / MICRO_BATCHES
        torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return {name: state[peft].detach() for peft, name in weights.items()}, losses


def script_loss(script: Script, model, data: Data, scheme: str, step: int, micro: int) -> Tensor:
    rows = data.rows(step, micro)
    model_input, noise = data.latents[rows], data.noise(step, micro)
    indices = data.indices[rows]
    timesteps = data.scheduler.timesteps[indices]
    sigmas = data.scheduler.sigmas[indices].flatten()
    while len(sigmas.shape) < model_input.ndim:
        sigmas = sigmas.unsqueeze(-1)
    noisy_model_input = (1.0 - sigmas) * model_input + sigmas * noise
    texts = data.texts[rows]
    embeddings = torch.stack([each["text_embeddings"] for each in texts])
    pooled = [each["pooled_text"] for each in texts if "pooled_text" in each]
    given = embeddings, torch.stack(pooled) if pooled else None
    controls = [each[rows] for each in data.controls]
    model_pred = script.predict(model, noisy_model_input, timesteps, *given, controls)
    weighting = compute_loss_weighting_for_sd3(weighting_scheme=scheme, sigmas=sigmas)
    target = noise - model_input
    loss = torch.mean(
        (weighting.float() * (model_pred.float() - target.float()) ** 2).reshape(
            target.shape[0], -1
        ),
        1,
    )
    return loss.mean()


def peft_name(name: str) -> str:
    layer, _, factor = name.rpartition(".")
    peft = {"lora_down": "lora_A", "lora_up": "lora_B"}[factor]
    return f"{layer}.{peft}.default.weight"


QUICK = [("qwen_image", "logit_normal"), ("flux", "sigma_sqrt"), ("kontext", "cosmap")]
# Every script and every scheme; the two do not act on each other.
LATER = [("z_image", "mode"), ("flux2", "none"), ("z_image", "sigma_sqrt"), ("flux2", "cosmap")]


@pytest.mark.parametrize(("name", "scheme"), [*QUICK, *rarely(LATER)])
def test_optimizer_steps_are_those_of_diffusers_script(name, scheme):
    script = SCRIPTS[name]
    torch.manual_seed(0)
    model = record(script.family).small().requires_grad_(False)
    other = copy.deepcopy(model)
    training = RunConfig.model_validate(
        {
            "training": {
                "batch_size": BATCH,
                "gradient_accumulation_steps": MICRO_BATCHES,
                "optimizer": {"learning_rate": 1e-3, "eps": EPS},
            }
        }
    ).training
    data = Data(script, scheme)
    weighting = scheme if scheme in {"sigma_sqrt", "cosmap"} else "none"
    made, losses = ours(script, model, data, LossSection(weighting=weighting), training)
    expected, their_losses = theirs(script, other, data, scheme, made, training)
    assert losses == pytest.approx(their_losses, rel=1e-6)
    moved, theirs_moved = (
        torch.cat([(each[name] - made.start[name]).flatten() for name in expected])
        for each in (made.end, expected)
    )
    assert theirs_moved.abs().max() > 1e-3, "nothing was learned"
    error = ((moved - theirs_moved).norm() / theirs_moved.norm()).item()
    assert error <= 1e-6
