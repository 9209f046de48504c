"""A plain loop of Diffusers and PEFT on samples that the trainer encoded.

What a script does that has nothing of ours: Diffusers' transformer and scheduler, PEFT's LoRA,
torch's AdamW, and the loss of Diffusers' script for this family with its defaults: uniform noise
levels, no weights. It is there to be compared with, in steps and in CPU seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage.pipeline_qwenimage import QwenImagePipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.training_utils import (
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from peft import LoraConfig
from torch import Tensor

from trainer_core.adapters import attach
from trainer_core.config import RunConfig
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import Prepared, prepare
from trainer_core.training.step.processes import SingleProcess

WEIGHTS = "pytorch_lora_weights.safetensors"
_VAE_SCALE = 8
_SCHEME = "none"


@dataclass(frozen=True)
class Mark:
    """What a loop had at a step.

    Attributes:
        step: From 1.
        seconds: CPU seconds since before the first step; to load and encode is not among them.
        adapter: File.
    """

    step: int
    seconds: float
    adapter: Path


def train_plainly(config: RunConfig, steps: int, every: int, folder: Path) -> list[Mark]:
    """Train a LoRA and save it now and then.

    Args:
        config: The run whose samples, batch size, rank, targets, learning rate and seed are taken.
            Nothing preserves the base, and the learning rate is constant, as in the script.
        steps: Optimizer steps.
        every: Steps between files.
        folder: For the files.
    """
    data = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    samples = [data.dataset.load(index) for index in range(len(data.dataset))]
    latents = torch.stack([each.latents for each in samples])
    texts = [each.conditioning["text_embeddings"] for each in samples]
    torch.manual_seed(config.seed)
    model, scheduler = _model(config, data)
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=config.training.optimizer.learning_rate, weight_decay=1e-4
    )
    order: list[int] = []
    marks, started = [], time.process_time()
    for step in range(1, steps + 1):
        while len(order) < config.training.batch_size:
            order += torch.randperm(len(samples)).tolist()
        rows, order = order[: config.training.batch_size], order[config.training.batch_size :]
        loss = _loss(model, scheduler, latents[rows], [texts[row] for row in rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0 or step == steps:
            seconds, place = time.process_time() - started, folder / f"{step:06}"
            model.save_lora_adapter(str(place))
            marks.append(Mark(step, seconds, place / WEIGHTS))
    return marks


def _model(
    config: RunConfig, data: Prepared
) -> tuple[QwenImageTransformer2DModel, FlowMatchEulerDiscreteScheduler]:
    """Diffusers' transformer with PEFT's LoRA on the layers that the run file names."""
    base = str(data.location.folder)
    model, bare = (
        QwenImageTransformer2DModel.from_pretrained(base, subfolder="transformer") for _ in range(2)
    )
    layers = attach(bare, config.adapter, presets=data.family.layers.presets).names
    model.requires_grad_(False)
    rank = config.adapter.rank
    model.add_adapter(
        LoraConfig(
            r=rank, lora_alpha=rank, init_lora_weights="gaussian", target_modules=list(layers)
        )
    )
    model.train()
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(base, subfolder="scheduler")
    assert isinstance(scheduler, FlowMatchEulerDiscreteScheduler)
    return model, scheduler


def _loss(
    model: QwenImageTransformer2DModel,
    scheduler: FlowMatchEulerDiscreteScheduler,
    latents: Tensor,
    texts: Sequence[Tensor],
) -> Tensor:
    noise = torch.randn_like(latents)
    batch, channels, height, width = latents.shape
    u = compute_density_for_timestep_sampling(_SCHEME, batch, 0.0, 1.0, 1.29)
    indices = (u * scheduler.config["num_train_timesteps"]).long()
    assert scheduler.sigmas is not None
    assert scheduler.timesteps is not None
    sigmas = scheduler.sigmas[indices].view(-1, 1, 1, 1)
    noisy = (1.0 - sigmas) * latents + sigmas * noise
    longest = max(len(each) for each in texts)
    mask = torch.stack([torch.arange(longest) < len(each) for each in texts])
    embeddings = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    output = model(
        hidden_states=QwenImagePipeline._pack_latents(noisy, batch, channels, height, width),
        encoder_hidden_states=embeddings,
        encoder_hidden_states_mask=mask.long(),
        timestep=scheduler.timesteps[indices] / 1000,
        img_shapes=[[(1, height // 2, width // 2)]] * batch,
        return_dict=False,
    )[0]
    size = height * _VAE_SCALE, width * _VAE_SCALE, _VAE_SCALE
    predicted = QwenImagePipeline._unpack_latents(output, *size).squeeze(2)
    weights = compute_loss_weighting_for_sd3(weighting_scheme=_SCHEME, sigmas=sigmas)
    squares = weights.float() * (predicted.float() - (noise - latents).float()) ** 2
    return squares.reshape(batch, -1).mean(1).mean()
