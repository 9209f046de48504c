"""A base with its encoders, a sampler and, if wanted, an adapter from a file: images on demand.

Serves previews, the ``sample`` verb and the demo; the last two look at an adapter file as a user
would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ..adapter_files.factors.fused_layers import refuse_undivided
from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.read.adapter_file import read_adapter
from ..adapters import AttachedAdapter
from ..adapters.attach_state import attach_state
from ..bases.locate import locate_base
from ..config import PreviewSection, RunConfig
from ..data.cache import cache_folder
from ..data.image import from_pixels, to_pixels
from ..device import DTYPES, borrowed_threads, resolve_device, resolve_precision
from ..diffusion.flow import SamplingStopped
from ..families.family import Family
from ..families.registry import get_family
from ..filesystem.storage import atomic_write
from ..tensors.safetensors_reader import Source
from ..types import AdapterState, Conditioning
from ..weights.base_location import BaseLocation
from .encoders import (
    EncodedPrompt,
    EncoderSource,
    LazyEncoders,
    MakeSource,
    check_controls,
    encode_prompts,
)
from .sampler import Sampler, SampleRequest, SampleSettings


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Samples images from texts.

    Attributes:
        sampler: Generates from encoded prompts.
        encoders: Encodes them; loaded when first used.
        key_map: Diffusers' names of layers to ComfyUI's.
    """

    sampler: Sampler
    encoders: EncoderSource
    key_map: KeyMap
    _negatives: dict[str, Conditioning] = field(default_factory=dict, init=False, repr=False)

    def request(
        self, text: str, seed: int, controls: Sequence[Image.Image] = (), negative: str = ""
    ) -> SampleRequest:
        """Encode one prompt.

        Args:
            text: The prompt.
            seed: Seed of the image's noise.
            controls: Control images at the size they are encoded at, upright RGB.
            negative: The negative prompt.

        Returns:
            The request to hand to the sampler.
        """
        encoders = self.encoders.open()
        return SampleRequest(
            conditioning=encoders.encode_text(text, controls),
            negative=self._negative(negative, controls),
            controls=tuple(encoders.encode_image(to_pixels(c)[None])[0] for c in controls),
            seed=seed,
        )

    def _negative(self, text: str, controls: Sequence[Image.Image]) -> Conditioning:
        if controls:
            # The text encoder sees these as well, and they are seldom the same twice.
            return self.encoders.open().encode_text(text, controls)
        if text not in self._negatives:
            self._negatives[text] = self.encoders.open().encode_text(text, controls)
        return self._negatives[text]

    def sample(self, requests: Sequence[SampleRequest], settings: SampleSettings) -> Tensor:
        """Sample images, `[B, 3, H, W]` in [-1, 1], on the CPU."""
        return self.sampler.sample(requests, settings)

    def put_on(self, adapter_file: Path) -> AttachedAdapter:
        """Attach the adapter of a file.

        Args:
            adapter_file: A safetensors file of any layout that is read.

        Returns:
            The adapter; its ``strength`` may be changed, `detach` takes it off.

        Raises:
            AdapterFileError: When the file cannot be read.
            AdapterError: When it does not fit the base.
        """
        return self.attach(read_adapter(adapter_file, self.key_map))

    def attach(self, state: AdapterState) -> AttachedAdapter:
        """Attach an adapter that was read before; as `put_on`.

        Raises:
            AdapterError: When it does not fit the base.
        """
        refuse_undivided(state, self.key_map, "the model that generates")
        adapter = attach_state(self.sampler.transformer, state)
        adapter.eval()
        return adapter


@dataclass(frozen=True, slots=True)
class _Place:
    """A checked base of which nothing is loaded yet."""

    family: Family
    location: BaseLocation
    encoders: EncoderSource
    precision: str
    device: torch.device
    base_format: str

    @property
    def key_map(self) -> KeyMap:
        return self.family.key_map

    def load(self) -> Pipeline:
        """Load decoder and denoiser."""
        decode = self.encoders.decoder()
        dtype = DTYPES[self.precision]
        transformer = self.family.load_transformer(
            self.location, dtype, self.device, self.base_format
        )
        sampler = Sampler(self.family, self.location, transformer, decode, self.device)
        return Pipeline(sampler, self.encoders, self.key_map)


def open_pipeline(
    config: RunConfig, *, has_controls: bool, make_source: MakeSource | None = None
) -> Pipeline:
    """Load a base to sample with.

    Args:
        config: The run file; its family, base, precision and device count.
        has_controls: Whether control images will be given.
        make_source: Gives the encoders; unset: they come from the base's folder.

    Returns:
        The pipeline.

    Raises:
        BaseModelError: When the base cannot be used.
    """
    return _locate(config, has_controls, make_source).load()


def _locate(config: RunConfig, has_controls: bool, make_source: MakeSource | None) -> _Place:
    device = resolve_device(config.memory.device)
    precision = resolve_precision(config.training.precision, device)
    family = get_family(config.family)
    location = locate_base(config.base, family, has_controls, needs_encoders=make_source is None)
    encoders = (
        make_source(family, location)
        if make_source is not None
        else LazyEncoders(config, family, location, device)
    )
    return _Place(family, location, encoders, precision, device, config.memory.base_format)


def sample_prompts(
    config: RunConfig,
    adapter_file: Source | None,
    strength: float = 1.0,
    make_source: MakeSource | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Tensor]:
    """Sample the run file's preview prompts with a base and an adapter file.

    The prompts are encoded first: encoders and denoiser are never in memory at the same time.

    Args:
        config: The run file; its ``preview`` section says what is generated.
        adapter_file: The adapter, or None for the base alone.
        strength: Factor on the adapter; 0 is the base.
        make_source: Gives the encoders; unset: they come from the base's folder.
        stop: Asked after each sampling step whether to give up.

    Yields:
        Pixels `[3, H, W]` in [-1, 1], for each prompt in order.

    Raises:
        SamplingStopped: When ``stop`` said so.
        InputError: When base, adapter or prompts cannot be used.
    """
    preview = config.preview
    place = _locate(config, any(preview.controls), make_source)
    # What cannot be used is refused before anything is encoded or loaded.
    state = None if adapter_file is None else read_adapter(adapter_file, place.key_map)
    if state is not None:
        refuse_undivided(state, place.key_map, "the model that generates")
    check_controls(preview, place.location.variant)
    place.encoders.decoder()
    prompts = encode_prompts(
        preview,
        config.dataset,
        place.family,
        cache_folder(config),
        place.encoders.identity,
        place.encoders.open,
    )
    place.encoders.close()
    pipeline = place.load()
    if state is not None:
        pipeline.attach(state).strength = strength
    size = SampleSettings(preview.width, preview.height, preview.steps, preview.guidance)
    for index, prompt in enumerate(prompts):
        yield pipeline.sampler.sample([prompt.request(preview.seed + index)], size, stop)[0]


def sample_images(
    config: RunConfig, adapter_file: Path | None, folder: Path, strength: float = 1.0
) -> list[Path]:
    """Sample the run file's preview prompts into files.

    Args:
        config: The run file; its ``preview`` section says what is generated.
        adapter_file: The adapter, or None for the base alone.
        folder: Where ``0.png``, ``1.png`` ... are written.
        strength: Factor on the adapter; 0 is the base.

    Returns:
        The images.

    Raises:
        InputError: When base, adapter or prompts cannot be used.
        StorageError: When an image cannot be written.
    """
    embedded = config.base.path == "embedded"
    with borrowed_threads(config.memory, embedded=embedded), torch.inference_mode(False):
        paths: list[Path] = []
        for index, pixels in enumerate(sample_prompts(config, adapter_file, strength)):
            paths.append(folder / f"{index}.png")
            image = from_pixels(pixels)
            atomic_write(paths[-1], lambda target, image=image: image.save(target, format="PNG"))
        return paths


def sample_previews(
    sampler: Sampler,
    settings: PreviewSection,
    prompts: Sequence[EncodedPrompt],
    deliver: Callable[[int, Tensor], None],
    stop: Callable[[], bool],
) -> None:
    """Sample one image for each prompt and hand each over as soon as it is generated.

    Whoever says stop gets no further images, and learns of it by asking the same question.

    Args:
        sampler: Generates on the run's base with its adapter.
        settings: Size, steps, guidance and seed.
        prompts: The encoded prompts.
        deliver: Takes a prompt's index and its pixels `[3, H, W]` in [-1, 1].
        stop: Asked before each prompt and after each sampling step whether to give up.
    """
    size = SampleSettings(settings.width, settings.height, settings.steps, settings.guidance)
    for index, prompt in enumerate(prompts):
        if stop():
            return
        try:
            # One at a time: a preview must not need more memory than a training step.
            pixels = sampler.sample([prompt.request(settings.seed + index)], size, stop)[0]
        except SamplingStopped:
            return
        deliver(index, pixels)
