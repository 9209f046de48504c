"""A base with its encoders, a sampler and, if wanted, an adapter from a file: images on demand.

Serves previews, the ``sample`` verb and the demo; the last two look at an adapter file as a user
would.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ..adapter_files.factors.fuse_layers import refuse_undivided
from ..adapter_files.factors.put_on_base import BaseAdapterFile, put_on_base
from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.read.read_adapter import read_adapter
from ..adapters import AttachedAdapter
from ..adapters.attach_state import attach_state
from ..bases.locate import locate_base
from ..bases.read_base_adapters import outline_base_adapters, read_base_adapters
from ..bases.read_family_adapter import changes_texts
from ..config import BaseSection, MemorySection, PreviewSection, RunConfig
from ..data.cache.build_cache import cache_folder
from ..data.image import from_pixels, on_white, to_pixels
from ..device import DTYPES, borrowed_threads, release_memory, resolve_device, resolve_precision
from ..diffusion.flow import SamplingStopped
from ..errors import naming_file
from ..families.family import NAME_THE_OTHER, Family
from ..families.registry import get_family
from ..families.trainable_text import refuse_texts, with_tokens
from ..filesystem.storage import atomic_write, require_folder
from ..offload.empty_base import empty_base
from ..offload.load_base import PlacedBase, load_base
from ..offload.machine import Machine
from ..offload.possible_plans import RESERVE
from ..quantization.quantized_linear import set_compute
from ..tensors.safetensors_reader import Source
from ..types import AdapterState, Conditioning, Sound
from ..weights.base_location import BaseLocation
from .encoder_source import EncoderSource, LazyEncoders, MakeSource
from .preview_files import preview_ending, preview_files, save_preview
from .preview_prompts import EncodedPrompt, check_controls, check_frames, encode_prompts
from .sampler import (
    Sampler,
    SampleRequest,
    SampleSettings,
    preview_rate,
    settings_of_prompt,
    size_note,
)
from .sampling_memory import sampling_bytes, sampling_memory
from .second_model import second_model


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Samples images from texts, until `close` or the end of a ``with``.

    Attributes:
        base: The denoiser, of which blocks may be swapped.
    """

    sampler: Sampler
    encoders: EncoderSource
    key_map: KeyMap
    base: PlacedBase
    _at_end: contextlib.ExitStack
    _negatives: dict[str, Conditioning] = field(default_factory=dict, init=False, repr=False)

    def __enter__(self) -> Pipeline:
        """Give the pipeline itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give back what swapped blocks and encoders have borrowed; again does nothing."""
        self._at_end.close()

    def request(
        self, text: str, seed: int, controls: Sequence[Image.Image] = (), negative: str = ""
    ) -> SampleRequest:
        """Encode one prompt.

        Args:
            controls: Control images at the size they are encoded at, upright RGB, or RGBA where
                the family's VAE reads transparency.

        Returns:
            The request to hand to the sampler.
        """
        sampler, encoders = self.sampler, self.encoders.open()
        channels = sampler.family.control_channels(sampler.location.variant)
        images = [on_white(control) for control in controls]
        pixels = [to_pixels(control, channels) for control in controls]
        return SampleRequest(
            conditioning=encoders.encode_text(text, images),
            negative=self._negative(negative, images),
            controls=tuple(encoders.encode_image(each[None])[0] for each in pixels),
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
        """Sample images, `[B, 3 or 4, H, W]` in [-1, 1], on the CPU."""
        return self.sampler.sample(requests, settings)

    def put_on(self, adapter_file: Source) -> AttachedAdapter:
        """Attach the adapter of a file.

        Args:
            adapter_file: A safetensors file of any layout that is read, or an adapter in memory.

        Returns:
            The adapter; its ``strength`` may be changed, `detach` takes it off.

        Raises:
            AdapterFileError: When the file cannot be read.
            AdapterError: When it does not fit the base.
        """
        with naming_file(adapter_file):
            return self.attach(read_adapter(adapter_file, self.key_map))

    def attach(self, state: AdapterState) -> AttachedAdapter:
        """Attach an adapter that was read before; arguments and errors as `put_on`."""
        refuse_undivided(state, self.key_map, _PLACE, welcome=KeyMap.is_fused_only)
        refuse_texts(state, self.sampler.location)
        transformer = self.sampler.transformer
        whole = self.key_map.whole_layers(dict(transformer.named_modules()))
        adapter = attach_state(transformer, state, whole)
        if self.sampler.family.lent is not None:
            self._at_end.callback(adapter.detach)  # the host goes on with its own layers
        self.base.send_rest()  # the factors of a swapped block were made where its weights lie
        adapter.eval()
        return adapter


_PLACE = "the model that generates"
_ReadAdapters = Callable[[BaseSection, Family], tuple[BaseAdapterFile, ...]]


@dataclass(frozen=True, slots=True)
class _Place:
    """A checked base of which nothing is loaded yet."""

    config: RunConfig
    family: Family
    location: BaseLocation
    encoders: EncoderSource
    device: torch.device
    machine: Machine

    @property
    def key_map(self) -> KeyMap:
        return self.family.layers.key_map

    def load(self, adapter: AdapterState | None = None) -> Pipeline:
        """Load decoder and denoiser; the adapter is one that will be attached."""
        decode = self.encoders.decoder()
        dtype = DTYPES[resolve_precision(self.config.training.precision, self.device)]
        memory = self._memory(dtype, adapter)
        with contextlib.ExitStack() as at_end:
            at_end.callback(self.encoders.close)
            base = load_base(
                memory,
                self.family,
                self.location,
                dtype=dtype,
                device=self.device,
                machine=self.machine,
                at_end=at_end,
            )
            if self.location.reads_tokens:
                self.encoders.join_text(base.transformer, dtype, self.device, at_end)
            set_compute(base.transformer, memory.compute)
            merge = not memory.blocks_to_swap
            put_on_base(base.transformer, self.key_map, self.adapters(), merge=merge)
            base.mark(True)  # weights that an adapter was merged into are other tensors
            base.send_rest()
            other = second_model(
                self.config,
                self.family,
                self.location,
                dtype=dtype,
                device=self.device,
                machine=self.machine,
            )
            sampler = Sampler(
                self.family,
                self.location,
                base.transformer,
                decode=decode,
                device=self.device,
                other=other,
            )
            return Pipeline(
                sampler, self.encoders, self.key_map, base=base, _at_end=at_end.pop_all()
            )

    def adapters(self, read: _ReadAdapters = read_base_adapters) -> list[BaseAdapterFile]:
        """Those that are part of the base in samples, too."""
        found = read(self.config.base, self.family)
        return [each for each in found if each.when != "training"]

    def _memory(self, dtype: torch.dtype, adapter: AdapterState | None) -> MemorySection:
        """How the base is kept, by what is free now."""
        if self.family.lent is not None:
            return self.config.memory  # whoever has the base in memory has found the room
        release_memory(self.device)
        beside = self.adapters(outline_base_adapters)
        states = [each.state for each in beside] + ([] if adapter is None else [adapter])
        held = sum(map(state_bytes, states))
        reserve = 0 if self.device.type == "cpu" else RESERVE
        base = empty_base(self.location, self.family)
        used = sampling_bytes(self.config, base, dtype)
        room = self.machine.free_memory(self.device) - reserve - held - used
        return sampling_memory(self.config.memory, base, dtype, room)


def open_pipeline(
    config: RunConfig,
    *,
    has_controls: bool,
    make_source: MakeSource | None = None,
    machine: Machine | None = None,
) -> Pipeline:
    """Load a base to sample with.

    Args:
        config: The run file; its family, base, precision and memory settings count, and the size of
            its previews where the blocks to swap are left open.
        has_controls: Whether control images will be given.
        make_source: Gives the encoders; unset: they come from the base's folder.
        machine: What may be taken of the computer; unset: all that is free.

    Returns:
        The pipeline, which has to be closed.

    Raises:
        BaseModelError: When the base cannot be used.
        ConfigError: When it has fewer blocks than are to be swapped.
    """
    return _locate(config, has_controls, make_source, machine).load()


def _locate(
    config: RunConfig,
    has_controls: bool,
    make_source: MakeSource | None,
    machine: Machine | None,
    family: Family | None = None,
    *,
    tokens: bool = False,
) -> _Place:
    """Find a base; ``tokens`` says whether an adapter changes its text encoder."""
    device, machine = resolve_device(config.memory.device), machine or Machine()
    family = (family or get_family(config.family)).of_base(config.base)
    if family.second_of(config.base) is None:
        remedy = f"{NAME_THE_OTHER} Or generate in ComfyUI."
        family.require_sampling(config.base, "images are to be generated", remedy)
    located = functools.partial(locate_base, needs_encoders=make_source is None, to_train=False)
    location = family.joined(located(config.base, family, has_controls), config)
    if tokens and not location.reads_tokens:
        location = with_tokens(location, family.text.trainable)
    encoders = (
        make_source(family, location)
        if make_source is not None
        else LazyEncoders(config, family, location, device=device, machine=machine)
    )
    return _Place(config, family, location, encoders=encoders, device=device, machine=machine)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to generate: a base, and an adapter on it or none.

    Attributes:
        adapter: The adapter's file, or None for the base alone.
        strength: Factor on the adapter; 0 is the base.
    """

    adapter: Source | None = None
    strength: float = 1.0


def sample_prompts(
    config: RunConfig,
    adapter_file: Source | None,
    strength: float = 1.0,
    make_source: MakeSource | None = None,
    stop: Callable[[], bool] | None = None,
    machine: Machine | None = None,
    family: Family | None = None,
) -> Generator[Tensor, None, None]:
    """Sample the run file's preview prompts with a base and an adapter file, or the base alone.

    Arguments and errors are those of `sample_candidates`.

    Yields:
        Pixels `[3 or 4, H, W]` in [-1, 1], for each prompt in order.
    """
    candidates = [Candidate(adapter_file, strength)]
    images = sample_candidates(
        config, candidates, make_source, stop=stop, machine=machine, family=family
    )
    for _, _, pixels in images:
        yield pixels


def sample_candidates(
    config: RunConfig,
    candidates: Sequence[Candidate],
    make_source: MakeSource | None = None,
    stop: Callable[[], bool] | None = None,
    machine: Machine | None = None,
    family: Family | None = None,
) -> Generator[tuple[int, int, Tensor], None, None]:
    """Sample the run file's preview prompts in several ways, from the same noise.

    The prompts are encoded first: encoders and denoiser are never in memory at the same time. One
    adapter at a time is in memory; candidates of the same one should follow each other.

    Args:
        config: The run file; its ``preview`` section says what is generated.
        candidates: At least one.
        make_source: Gives the encoders; unset: they come from the base's folder.
        stop: Asked after each sampling step whether to give up.
        machine: What may be taken of the computer; unset: all that is free.
        family: The base's family, where the caller made it; unset: the one that the run file names.

    Yields:
        Numbers of candidate and prompt, and pixels `[3 or 4, H, W]` in [-1, 1]; all prompts of the
        first candidate come first.

    Raises:
        SamplingStopped: When ``stop`` said so.
        InputError: When base, adapter or prompts cannot be used.
    """
    preview = config.preview
    family = (family or get_family(config.family)).of_base(config.base)
    place = _locate(
        config,
        family.starts is None and (family.steered or any(preview.controls)),
        make_source,
        machine=machine,
        family=family,
        tokens=any(changes_texts(each.adapter, family) for each in candidates if each.adapter),
    )
    # What cannot be used is refused before anything is encoded or loaded.
    largest = _largest(place, candidates)
    check_controls(preview, place.location.variant, family)
    check_frames(preview, family, usual=1)
    if note := size_note(preview, place.family, place.location):
        logging.getLogger(__name__).warning(note)
    place.encoders.decoder()
    with contextlib.closing(place.encoders):
        prompts = encode_prompts(
            preview,
            config.dataset,
            place.family,
            variant=place.location.variant,
            folder=cache_folder(config),
            identity=place.encoders.identity,
            open_encoders=place.encoders.open,
            size_step=place.family.latent_step(place.location),
        )
    with place.load(largest) as pipeline:
        on: AttachedAdapter | None = None
        for number, candidate in enumerate(candidates):
            if number == 0 or candidate.adapter is not candidates[number - 1].adapter:
                on = _exchanged(pipeline, on, candidate.adapter)
            if on is not None:
                on.strength = candidate.strength
            for index, prompt in enumerate(prompts):
                size, seed = settings_of_prompt(preview, pipeline.sampler, index)
                yield number, index, pipeline.sampler.sample([prompt.request(seed)], size, stop)[0]


def _largest(place: _Place, candidates: Sequence[Candidate]) -> AdapterState | None:
    """Read every adapter once, and keep the one that needs most memory."""
    largest: AdapterState | None = None
    for number, candidate in enumerate(candidates):
        repeated = number > 0 and candidate.adapter is candidates[number - 1].adapter
        if candidate.adapter is None or repeated:
            continue
        state = read_adapter(candidate.adapter, place.key_map)
        with naming_file(candidate.adapter):
            refuse_undivided(state, place.key_map, _PLACE, welcome=KeyMap.is_fused_only)
        if largest is None or state_bytes(state) > state_bytes(largest):
            largest = state
    return largest


def state_bytes(state: AdapterState) -> int:
    """What an adapter's factors take, in bytes."""
    layers = state.layers.values()
    return sum(each.nbytes for layer in layers for each in layer.tensors.values())


def _exchanged(
    pipeline: Pipeline, on: AttachedAdapter | None, source: Source | None
) -> AttachedAdapter | None:
    """Put another adapter, or none, in the place of the one that is on the base."""
    if on is not None:
        on.detach()
    return None if source is None else pipeline.put_on(source)


def sample_images(
    config: RunConfig,
    adapter_file: Path | None,
    folder: Path,
    strength: float = 1.0,
    machine: Machine | None = None,
) -> list[Path]:
    """Sample the run file's preview prompts into files, as `sample_prompts`.

    Args:
        folder: Where ``0.png``, ``1.png`` ... are written, of clips ``0.webp``. Nothing is
            replaced: numbers go on behind the highest one that is there.

    Raises:
        InputError: When base, adapter or prompts cannot be used.
        StorageError: When an image cannot be written.
    """
    require_folder(folder)
    embedded = config.base.path == "embedded"
    rate = preview_rate(config, get_family(config.family).of_base(config.base))
    with borrowed_threads(config.memory, embedded=embedded), torch.inference_mode(False):
        paths: list[Path] = []
        for pixels in sample_prompts(config, adapter_file, strength, machine=machine):
            images = [from_pixels(each) for each in (pixels if pixels.ndim > 3 else pixels[None])]
            paths.append(_next_file(folder, preview_ending(len(images))))
            write = functools.partial(save_preview, images, rate=rate)
            atomic_write(paths[-1], lambda target, write=write: write(target))
        return paths


def _next_file(folder: Path, ending: str) -> Path:
    """Asked anew for each image: another command may write to the same folder."""
    there = preview_files(folder) if folder.is_dir() else []
    return folder / f"{max((int(path.stem) for path in there), default=-1) + 1}{ending}"


def sample_previews(
    sampler: Sampler,
    settings: PreviewSection,
    prompts: Sequence[EncodedPrompt],
    deliver: Callable[[int, Tensor, Sound | None], None],
    stop: Callable[[], bool],
    layers: int,
    frames: int = 1,
) -> None:
    """Sample one image for each prompt and hand each over as soon as it is generated.

    Whoever says stop gets no further images, and learns of it by asking the same question.

    Args:
        sampler: Generates on the run's base with its adapter.
        deliver: Takes a prompt's index, its pixels `[3 or 4, H, W]` in [-1, 1], of a clip
            `[T, 3, H, W]`, and that clip's sound.
        stop: Asked before each prompt and after each sampling step whether to give up.
        layers: How many layers the images of the dataset have.
        frames: How many frames most clips of the dataset have.
    """
    for index, prompt in enumerate(prompts):
        if stop():
            return
        size, seed = settings_of_prompt(settings, sampler, index, layers=layers, frames=frames)
        try:
            # One at a time: a preview must not need more memory than a training step.
            pixels, sounds = sampler.sample_with_sound([prompt.request(seed)], size, stop)
        except SamplingStopped:
            return
        deliver(index, pixels[0], sounds[0] if sounds else None)
