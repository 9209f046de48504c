"""Trains the embedded base's transformer on for images of 256 pixels, which have 256 tokens.

What is measured of routing, masks and speed needs more than the 16 tokens of the embedded base.
All other parts stay its own: its autoencoder gives back such images within 31 to 42 dB.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from trainer_core.demo.vocabulary import CAPTION_TEMPLATES, IMAGE_SIZE, Combination

from .base_folder import load_base, write_transformer
from .conditioning import Conditioner
from .denoiser import DenoiserSettings, train_denoiser
from .drawing import OVERSAMPLING, Color, Scene, paint_shape, random_scene
from .latents import LatentCodec
from .pool import Pool
from .vocabulary import training_combinations

SIZE = 256
TEXTURES = ("", "striped ", "checkered ", "dotted ")
"""Words before a background's colour; the first is a plain one."""

_CONTRAST = 16
"""A texture is this much darker, below what the checker takes for a shape."""

_POOL_IMAGES = 8_000
_POOL_SEED = 61
SETTINGS = DenoiserSettings(
    steps=2_400, captioned=16, edits=0, learning_rate=1e-3, warm_up=100, plateau=0.4, seed=43
)


def caption(combination: Combination, texture: str, template: int = 0) -> str:
    """What an image shows, in one of the embedded base's wordings."""
    return combination._replace(background=texture + combination.background).caption(template)


def draw_textured(scene: Scene, texture: str, period: int, size: int = SIZE) -> np.ndarray:
    """Draw a scene of the 64-pixel world larger, on a texture.

    Args:
        scene: Its centre and radius are in pixels of 64.
        texture: One of `TEXTURES`.
        period: Of the texture, in pixels.
        size: Edge of the image in pixels.

    Returns:
        uint8 ``[size, size, 3]``.
    """
    image = Image.fromarray(_background(scene.background, texture, period, size))
    image = image.resize((size * OVERSAMPLING, size * OVERSAMPLING), Image.Resampling.NEAREST)
    paint_shape(ImageDraw.Draw(image), scene, OVERSAMPLING * size / IMAGE_SIZE)
    return np.asarray(image.reduce(OVERSAMPLING), dtype=np.uint8)


def _background(color: Color, texture: str, period: int, size: int) -> np.ndarray:
    rows, columns = np.mgrid[:size, :size]
    x, y = columns % period, rows % period
    dark = {
        "": np.zeros_like(x, dtype=bool),
        "striped ": x < period // 2,
        "checkered ": (x < period // 2) ^ (y < period // 2),
        "dotted ": (x - period / 2) ** 2 + (y - period / 2) ** 2 < (period / 3) ** 2,
    }[texture]
    # A dark colour gets lighter parts.
    step = _CONTRAST if sum(color) < 3 * _CONTRAST * 2 else -_CONTRAST
    return np.clip(np.asarray(color) + dark[..., None] * step, 0, 255).astype(np.uint8)


def random_image(random: np.random.Generator) -> tuple[np.ndarray, Combination, str]:
    """Draw one of the combinations that the embedded base is trained on, and say which."""
    combinations = training_combinations()
    combination = combinations[random.integers(len(combinations))]
    texture = TEXTURES[random.integers(len(TEXTURES))]
    period = 2 * int(random.integers(8, 17))
    return draw_textured(random_scene(combination, random), texture, period), combination, texture


def build_pool(conditioner: Conditioner, codec: LatentCodec, count: int = _POOL_IMAGES) -> Pool:
    """Draw and encode the training images, as the controls of edits that are never asked for."""
    random = np.random.default_rng(_POOL_SEED)
    named = [(each, texture) for each in training_combinations() for texture in TEXTURES]
    row_of = {name: place * len(CAPTION_TEMPLATES) for place, name in enumerate(named)}
    wordings = range(len(CAPTION_TEMPLATES))
    texts = [caption(*name, template) for name in named for template in wordings]
    tokens, rows = [], []
    for _ in range(0, count, 100):
        drawn = [random_image(random) for _ in range(100)]
        tokens.append(codec.encode(np.stack([image for image, *_ in drawn]), chunk=20))
        rows += [row_of[combination, texture] for _, combination, texture in drawn]
    images, numbers = torch.cat(tokens), torch.tensor(rows)
    captions = conditioner.captions([*texts, ""])
    described = torch.zeros(len(images), dtype=torch.bool)
    return Pool(images, images, numbers, numbers, described, captions, captions)


def build_playground(base: Path, folder: Path, work: Path) -> None:
    """Make the base of 256 pixels in a folder.

    Args:
        base: The embedded base's folder.
        folder: Where the new one goes.
        work: Where unfinished training is kept.
    """
    shutil.copytree(base, folder, dirs_exist_ok=True)
    loaded = load_base(base)
    pool = build_pool(loaded.conditioner, loaded.codec)
    trained = train_denoiser(
        SETTINGS,
        pool,
        work / "playground.pt",
        lambda transformer, step: write_transformer(transformer, folder),
        start=loaded.transformer,
    )
    write_transformer(trained, folder)
