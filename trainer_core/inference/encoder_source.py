"""`EncoderSource`: where a run's encoders and image decoder come from, when first needed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from ..config import RunConfig
from ..data.cache.encoder_protocols import Encoders
from ..data.captions.length import TextLimit
from ..device import DTYPES, release_memory, resolve_device, resolve_precision
from ..families.family import Family
from ..families.trainable_text import join_text, load_text
from ..offload.machine import Machine
from ..weights.base_location import BaseLocation
from .decoder import PreviewDecoder
from .placed_encoders import place_encoders


class EncoderSource(Protocol):
    """Gives encoders and the image decoder when they are first needed.

    Attributes:
        identity: Names the encoders and everything else that decides what they yield, such as
            their precision; a part of the cache's keys.
        weighs: Whether the tokenizer reads round brackets as weights of words.
        sounds: Names what encodes the sound of clips; empty where none is trained.
    """

    identity: str

    @property
    def sounds(self) -> str:
        """As above."""
        ...

    @property
    def weighs(self) -> bool:
        """As above."""
        ...

    def open(self) -> Encoders:
        """The encoders; the same ones until `close`."""
        ...

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Latents `[B, C, h, w]`, normalised, to pixels `[B, 3 or 4, H, W]` in [-1, 1]."""
        ...

    def text_limit(self) -> TextLimit | None:
        """How long captions may be; None where they are read whole."""
        ...

    def join_text(
        self,
        transformer: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        at_end: contextlib.ExitStack,
    ) -> None:
        """Make the text encoder that is trained a part of the denoiser.

        Args:
            dtype: What a text encoder that is loaded for it computes in.
            at_end: Gives back what was borrowed.
        """
        ...

    def close(self) -> None:
        """Drop the encoders and give their memory back; the decoder stays."""
        ...


MakeSource = Callable[[Family, BaseLocation], EncoderSource]
"""Makes the source once the base is located, and with it the variant that is encoded for."""


class LazyEncoders:
    """Loads the encoders when the first sample needs them, and lets go of them.

    Args:
        device: Where the denoiser computes, and the encoders as well where nothing else is set.
        machine: What they may take of the computer; unset: all that is free.
    """

    weighs = False
    sounds = ""

    def __init__(
        self,
        config: RunConfig,
        family: Family,
        location: BaseLocation,
        device: torch.device,
        machine: Machine | None = None,
    ) -> None:
        precision = resolve_precision(config.training.precision, device)
        # In another precision the encoders yield other numbers.
        self.identity = f"{location.identity} {precision}"
        self._load = lambda: family.load_encoders(location, DTYPES[precision], "cpu")
        self._load_vae = lambda: family.latents.load_vae(location, DTYPES[precision], "cpu")
        self._load_text = functools.partial(_trained_text, family, location)
        self._load_counter = lambda: family.text.load_token_counter(location)
        self._text_length = location.text_length
        self._latents, self._numbers = family.latents.of_config, family.latents.decoder_numbers
        own = config.memory.encoder_device
        self._device = resolve_device(own, "memory.encoder_device") if own else device
        self._memory, self._machine = config.memory, machine or Machine()
        self._loaded: Encoders | None = None
        self._decoder: Callable[[Tensor], Tensor] | None = None
        self._at_close = contextlib.ExitStack()

    def open(self) -> Encoders:
        """Load once."""
        if self._loaded is None:
            self._loaded = place_encoders(
                self._load, self._device, self._memory, machine=self._machine, at_end=self._at_close
            )
        return self._loaded

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Load the VAE's decoder once; it stays, because previews come again and again."""
        if self._decoder is None:
            vae = self._load_vae()
            _, pixels = self._latents(vae.model.config)
            self._decoder = PreviewDecoder(
                vae, pixels, self._device, machine=self._machine, numbers=self._numbers
            )
        return self._decoder

    def text_limit(self) -> TextLimit:
        """How long captions may be; loads the tokenizer alone."""
        return TextLimit(self._load_counter(), self._text_length)

    def join_text(
        self,
        transformer: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        at_end: contextlib.ExitStack,
    ) -> None:
        """Load CLIP-L, or what else the family has."""
        del at_end
        join_text(transformer, self._load_text(dtype).to(device))

    def close(self) -> None:
        """Drop the encoders and give their memory back."""
        if self._loaded is not None:
            self._loaded = None
            self._at_close.close()
            release_memory(self._device)


def _trained_text(family: Family, location: BaseLocation, dtype: torch.dtype) -> nn.Module:
    if family.text.trainable is None:
        raise ValueError(f"{family.name} has no text encoder that can be trained")
    return load_text(family.text.trainable, location, dtype)
