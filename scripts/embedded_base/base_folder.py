"""Writes and reads the Diffusers folder of the tiny base model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageTransformer2DModel,
)
from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

from .conditioning import Conditioner
from .latents import LatentCodec
from .text_encoder import build_text_encoder
from .tokenizer import build_tokenizer, check_prefixes
from .vision_processor import save_processor

MODEL_INDEX = {
    "_class_name": "QwenImagePipeline",
    "_diffusers_version": diffusers.__version__,
    "processor": ["transformers", "Qwen2VLProcessor"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "QwenImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage"],
}
"""The text-to-image pipeline ignores the processor; the edit pipelines need it."""


@dataclass(frozen=True)
class LoadedBase:
    """The parts of the base model, ready for batched sampling.

    Attributes:
        transformer: The denoiser, float32.
        codec: Encodes and decodes pictures.
        conditioner: Encodes captions and instructions.
    """

    transformer: QwenImageTransformer2DModel
    codec: LatentCodec
    conditioner: Conditioner


def new_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Returns the scheduler: evenly spaced noise levels at every picture size.

    A 64-pixel picture has 16 tokens. The shift of the large model, which rises
    with the number of tokens, has nothing to correct there. Its fields are
    still present with values that stay neutral if someone switches it on.
    """
    return FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=1.0,
        use_dynamic_shifting=False,
        base_shift=0.0,
        max_shift=1.0,
        base_image_seq_len=16,
        max_image_seq_len=4096,
        time_shift_type="exponential",
    )


def write_frozen_parts(folder: Path) -> None:
    """Writes everything that needs no training.

    Args:
        folder: The folder of the base model; created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "tokenizer")
    save_processor(tokenizer, folder / "processor")
    write_text_encoder(build_text_encoder(tokenizer), folder)
    new_scheduler().save_pretrained(folder / "scheduler")
    text = json.dumps(MODEL_INDEX, indent=2) + "\n"
    (folder / "model_index.json").write_text(text, encoding="utf-8")


def write_text_encoder(encoder: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Writes the text encoder in bfloat16, to be loaded as float32 by default.

    Transformers loads weights in the type that the configuration names, but
    Diffusers loads its own models as float32. They have to agree.
    """
    encoder.save_pretrained(folder / "text_encoder")
    path = folder / "text_encoder" / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def write_vae(vae: AutoencoderKLQwenImage, folder: Path) -> None:
    """Writes the autoencoder in bfloat16; ``vae`` itself is left as it is."""
    copy = AutoencoderKLQwenImage.from_config(vae.config)
    copy.load_state_dict(vae.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder / "vae")


def write_transformer(transformer: QwenImageTransformer2DModel, folder: Path) -> None:
    """Writes the transformer in bfloat16; ``transformer`` itself is left as it is."""
    copy = QwenImageTransformer2DModel.from_config(transformer.config)
    copy.load_state_dict(transformer.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder / "transformer")


def load_vae(folder: Path) -> AutoencoderKLQwenImage:
    """Loads the autoencoder with its rounded weights, as float32."""
    return AutoencoderKLQwenImage.from_pretrained(folder / "vae", torch_dtype=torch.float32).eval()


def load_conditioner(folder: Path) -> Conditioner:
    """Loads the parts that encode texts, as float32.

    Raises:
        ValueError: If the tokenizer does not fit the templates of the pipelines.
    """
    tokenizer = Qwen2Tokenizer.from_pretrained(folder / "tokenizer")
    check_prefixes(tokenizer)
    encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder / "text_encoder", dtype=torch.float32
    )
    images = Qwen2VLImageProcessorPil.from_pretrained(folder / "processor")
    return Conditioner(tokenizer, encoder.eval(), images)


def load_base(folder: Path) -> LoadedBase:
    """Loads the whole base model with its rounded weights, as float32."""
    transformer = QwenImageTransformer2DModel.from_pretrained(
        folder / "transformer", torch_dtype=torch.float32
    )
    codec = LatentCodec.of(load_vae(folder))
    return LoadedBase(transformer.eval(), codec, load_conditioner(folder))


def folder_size(folder: Path) -> int:
    """Returns the size of all files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
