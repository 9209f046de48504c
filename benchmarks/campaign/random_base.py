"""Full-size bases of random numbers, made on the device layer by layer, and samples for them.

No file of weights is read and no encoder is needed; all else is what a run does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from trainer_core.data.cache.cache_file import make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.families.family import Family
from trainer_core.families.registry import get_family
from trainer_core.offload.empty_base import empty_base
from trainer_core.offload.model_bytes import packs
from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.training.prepare.encode_dataset import Prepared
from trainer_core.types import Bucket
from trainer_core.weights.base_location import BaseLocation
from trainer_core.weights.diffusers_folder import read_json

SAMPLES = 4
_NORM_BIAS = 0.02
_TINY: Mapping[str, Any] = {
    "attention_head_dim": 32,
    "axes_dims_rope": [8, 12, 12],
    "joint_attention_dim": 64,
    "num_attention_heads": 2,
    "num_layers": 4,
    "num_single_layers": 4,
    "pooled_projection_dim": 32,
}


@dataclass(frozen=True)
class Size:
    """How large bases and samples are.

    Attributes:
        transformer: What is changed in the published settings.
        divisor: Of the images' sides.
        text: Tokens of a text.
        time: Of a full-size cell's.
        gibibyte: Bytes of a card's size.
    """

    transformer: Mapping[str, Any]
    divisor: int
    text: int
    time: float
    gibibyte: int


SIZES = {"full": Size({}, 1, 256, 1.0, 1 << 30), "tiny": Size(_TINY, 16, 32, 0.02, 1 << 19)}
"""As published, and for a rehearsal on a CPU."""


class NoEncoders:
    """Stands where a run has encoders: nothing is encoded and no preview is sampled."""

    identity = "random"
    weighs = False
    sounds = ""

    def open(self) -> NoReturn:
        """Refuse."""
        raise RuntimeError("a random base has no encoders")

    decoder = text_limit = open

    def join_text(
        self, transformer: object, dtype: object, device: object, at_end: object
    ) -> NoReturn:
        """Refuse."""
        self.open()

    def close(self) -> None:
        """Nothing is open."""


class RandomFamily(Family):
    """A family whose denoiser is made of random numbers instead of being read."""

    @classmethod
    def of(cls, name: str) -> RandomFamily:
        """The family of a name."""
        known = get_family(name)
        return cls(**{each.name: getattr(known, each.name) for each in fields(Family)})

    def load_transformer(
        self,
        location: BaseLocation,
        dtype: torch.dtype,
        device: torch.device | str,
        base_format: str = "dense",
        mapped: bool = False,
        packed_on: torch.device | None = None,
        take: object = None,
    ) -> nn.Module:
        """As `Family.load_transformer`, of numbers that are drawn and packed on the GPU."""
        del mapped, packed_on, take
        maker = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        generator = torch.Generator(maker).manual_seed(0)
        transformer = empty_base(location, self).transformer
        precise = frozenset(getattr(transformer, "_keep_in_fp32_modules", None) or ())
        stored = FORMATS.get(base_format)
        inside = tuple(f"{each}." for each in self.layers.repeated_blocks)
        for path, module in list(transformer.named_modules()):
            drawn: dict[str, Tensor] = {}
            for name, empty in module.named_parameters(recurse=False):
                wide = not precise.isdisjoint(f"{path}.{name}".split("."))
                kind = torch.float32 if wide else dtype
                drawn[name] = _draw(path, name, empty, generator).to(kind)
            parts = {}
            if stored is not None and path.startswith(inside) and packs(module, stored):
                parts = stored.pack(drawn.pop("weight"))
            if parts and isinstance(module, nn.Linear):
                owner, _, leaf = path.rpartition(".")
                shape = module.out_features, module.in_features
                here = {name: part.to(device) for name, part in parts.items()}
                module = QuantizedLinear(stored, shape, here, None, dtype)  # pyright: ignore[reportArgumentType]
                transformer.get_submodule(owner)._modules[leaf] = module
            for name, value in drawn.items():
                kept = nn.Parameter(value.to(device), requires_grad=False)
                module.register_parameter(name, kept)
        self.files.single_file.restore(transformer)
        transformer.requires_grad_(False).eval().to(device)
        self.layers.prepare(transformer)
        return transformer


def _draw(path: str, name: str, empty: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers that leave what goes through them at its size."""
    noise = torch.randn(empty.shape, generator=generator, device=generator.device)
    if empty.ndim > 1:
        return noise.div_(empty[0].numel() ** 0.5)
    start = 1.0 if name == "weight" and "norm" in path else 0.0
    return noise.mul_(_NORM_BIAS).add_(start)


def random_location(name: str, size: str, folder: Path) -> BaseLocation:
    """A base's folder: settings, and a file of weights without a byte of weights.

    What looks at the file before loading, as a plan does, finds what is in a published one: names,
    shapes and bf16. Its numbers are a hole that takes no room on the disk.
    """
    family = get_family(name)
    published = family.files.single_file.configs / family.variants[0]
    here = folder / f"{name}_{size}"
    text = SIZES[size].text
    location = BaseLocation(here, published, family.variants[0], text, f"random {name}", False)
    weights = here / "transformer" / "diffusion_pytorch_model.safetensors"
    if weights.is_file():
        return location
    facts = read_json(published / "transformer" / "config.json")
    facts |= {key: value for key, value in SIZES[size].transformer.items() if key in facts}
    weights.parent.mkdir(parents=True, exist_ok=True)
    (weights.parent / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    header: dict[str, Any] = {}
    end = 0
    for path, empty in empty_base(location, family).weights.items():
        start, end = end, end + 2 * empty.numel()
        place = {"dtype": "BF16", "shape": list(empty.shape), "data_offsets": [start, end]}
        header[path] = place
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    with weights.open("wb") as file:
        file.write(struct.pack("<Q", len(packed)) + packed)
        file.truncate(8 + len(packed) + end)
    return location


def random_data(name: str, size: str, pixels: int, folder: Path) -> Prepared:
    """What a run has before it loads the denoiser: samples in a cache, of real sizes.

    Args:
        name: The family.
        size: Key of `SIZES`.
        pixels: Side of the images at full size.
        folder: Takes the cache.
    """
    family, location = RandomFamily.of(name), random_location(name, size, folder)
    side = pixels // SIZES[size].divisor
    facts = read_json(location.folder / "transformer" / "config.json")
    shapes = family.text.conditioning_shapes(facts, location.text_length)
    generator = torch.Generator().manual_seed(pixels)
    items: list[CachedItem] = []
    for number in range(SAMPLES):
        latents = make_entry(folder, "latents", name, size, pixels, number)
        text = make_entry(folder, "text", name, size, pixels, number)
        shape = family.latent_shape(location, side, side)
        write_entry(latents, {"latents": torch.randn(shape, generator=generator)})
        texts = {each: torch.randn(shape, generator=generator) for each, shape in shapes.items()}
        write_entry(text, texts)
        items.append(CachedItem(f"{number}.png", Bucket(side, side), (), latents, (), text, text))
    return Prepared(family, location, CachedDataset(items), (), NoEncoders())


def at_size(data: Prepared, other: Prepared) -> Prepared:
    """A base with the samples of another size."""
    return replace(data, dataset=other.dataset)
