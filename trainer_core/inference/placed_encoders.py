"""`PlacedEncoders`: encoders that do not fit a device together, or not even one of them.

Images are encoded with the VAE alone on the device, texts with the text encoders alone. Of text
encoders that do not fit, the layers are swapped as the blocks of a denoiser are: the embeddings are
the same bits on every machine, and so is the cache (docs/decisions/0017-block-swap.md).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from ..config import MemorySection
from ..data.cache.encoder_protocols import Encoders, encode_texts, of_clips
from ..device import release_memory
from ..families.family_specs import PartedEncoders
from ..offload.block_selection import bytes_away, evenly_spread
from ..offload.host_weights import MappedMaster, Master, make_master
from ..offload.machine import Machine
from ..offload.streamed_blocks import StreamedBlocks
from ..offload.transfer import make_transfer
from ..types import Conditioning

TEXT_ROOM = 3 << 29
"""Bytes of a GPU that are left to the activations of text encoders, and to libraries."""

WHOLE_ROOM = 5 << 30
"""The same beside all encoders: an image of 1024 pixels a side is encoded in 3.5 GiB."""


def place_encoders(
    load: Callable[[], PartedEncoders],
    device: torch.device,
    memory: MemorySection,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> Encoders:
    """Bring encoders to a device, as a whole where there is room for it.

    Args:
        load: Loads them on the CPU, where weights may be views into the files.
        memory: ``swap_slots`` and ``master`` of layers that are swapped.
        at_end: Lets go of what is more than objects.
    """
    loaded = load()
    models = [loaded.vae.model, *loaded.text_models]
    room = 0 if device.type == "cpu" else WHOLE_ROOM
    if _size(models) + room <= machine.free_memory(device):
        for model in models:
            model.to(device)
        return loaded
    placed = PlacedEncoders(load, device, memory, machine)
    at_end.callback(placed.close)
    return placed


class PlacedEncoders:
    """A family's encoders, of which one part is on the device at a time.

    Attributes:
        part: What is on the device: ``image``, ``text`` or nothing.
        streamed: The layers of text encoders that are swapped now.
    """

    def __init__(
        self,
        load: Callable[[], PartedEncoders],
        device: torch.device,
        memory: MemorySection,
        machine: Machine,
    ) -> None:
        self._load, self._device = load, device
        self._memory, self._machine = memory, machine
        self._loaded: PartedEncoders | None = None
        self.part = ""
        self.streamed: StreamedBlocks | None = None

    def encode_image(self, pixels: Tensor) -> Tensor:
        """As `Encoders.encode_image`."""
        return self._with("image").encode_image(pixels)

    def encode_clip(self, frames: Tensor) -> Tensor:
        """As `ClipEncoders.encode_clip`."""
        return of_clips(self._with("image")).encode_clip(frames)

    def encode_endpoints(self, first: Tensor, last: Tensor | None, count: int) -> Conditioning:
        """As `ClipEncoders.encode_endpoints`."""
        return of_clips(self._with("image")).encode_endpoints(first, last, count)

    def encode_text(self, caption: str, controls: Sequence[Image.Image] = ()) -> Conditioning:
        """As `Encoders.encode_text`."""
        return self._with("text").encode_text(caption, controls)

    def encode_texts(
        self, captions: Sequence[str], controls: Sequence[Sequence[Image.Image]]
    ) -> list[Conditioning]:
        """As `encode_texts` of the family's encoders."""
        return encode_texts(self._with("text"), captions, controls)

    def close(self) -> None:
        """Let go of everything; the next call loads again."""
        if self.streamed is not None:
            self.streamed.close()
        if self._loaded is not None:
            # Not by way of the CPU: what is dropped need not be copied back.
            self._loaded, self.streamed, self.part = None, None, ""
            release_memory(self._device)

    def _with(self, part: str) -> PartedEncoders:
        """The encoders, with one part on the device."""
        if self._loaded is None or self.part != part:
            self.close()
            self._loaded, self.part = self._load(), part
            try:
                if part == "image":
                    self._loaded.vae.model.to(self._device)
                else:
                    self._place(self._loaded.text_models)
            except BaseException:
                self.close()
                raise
        return self._loaded

    def _place(self, models: Sequence[nn.Module]) -> None:
        room = 0 if self._device.type == "cpu" else TEXT_ROOM
        slots = self._memory.swap_slots
        missing = _size(models) + room - self._machine.free_memory(self._device)
        away = layers_to_swap(models, missing, slots) if missing > 0 else []
        if not away:
            for model in models:
                model.to(self._device)
            return
        transfer, master = make_transfer(self._device), self._master(_size(away))
        self.streamed = StreamedBlocks(away, self._device, slots, master=master, transfer=transfer)
        for model in models:
            self.streamed.place_rest(model, self._device)

    def _master(self, size: int) -> Master:
        """Where swapped layers lie: in RAM only where that leaves as much as it takes."""
        name = self._memory.master
        if name == "file" or self._device.type == "cpu" or 2 * size > self._machine.free_ram():
            return MappedMaster(required=False)
        return make_master(
            "pageable" if name == "pageable" else "auto", self._device, self._machine
        )


def layers_to_swap(models: Sequence[nn.Module], missing: int, slots: int) -> list[nn.Module]:
    """The fewest layers without which models take so many bytes less, or all if none suffice.

    Those of the longest lists of layers go first: the small ones of a small encoder gain nothing.

    Args:
        models: Frozen.
        missing: Bytes that they are too large.
        slots: Layers of one layout that are on the device at a time.

    Returns:
        In the order in which they are called.
    """
    lists = [found for model in models for found in _layer_lists(model)]
    order = {id(each): place for place, each in enumerate(itertools.chain(*lists))}
    chosen: list[nn.Module] = []

    def in_order(found: list[nn.Module]) -> list[nn.Module]:
        return sorted(found, key=lambda each: order[id(each)])

    for layers in sorted(lists, key=_size, reverse=True):
        for count in range(1, len(layers) + 1):
            more = [layers[each] for each in evenly_spread(count, len(layers))]
            if bytes_away([*chosen, *more], slots, _nbytes) >= missing:
                return in_order([*chosen, *more])
        chosen += layers
    return in_order(chosen)


def _layer_lists(model: nn.Module) -> list[list[nn.Module]]:
    """The outermost lists of a model's layers, which run one after the other."""
    if isinstance(model, nn.ModuleList):
        return [list(model)]
    return [found for child in model.children() for found in _layer_lists(child)]


def _nbytes(tensor: Tensor) -> int:
    return tensor.nbytes


def _size(models: Sequence[nn.Module]) -> int:
    """Bytes of the weights; those that several parts share count once."""
    held = {id(each): each for m in models for each in (*m.parameters(), *m.buffers())}
    return sum(map(_nbytes, held.values()))
