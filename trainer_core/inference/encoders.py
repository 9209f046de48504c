"""Where a run's encoders come from: the base's own folder, or whoever calls `train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..config import RunConfig
from ..data.cache import Encoders
from ..data.captions import TextLimit
from ..device import DTYPES, release_memory, resolve_precision
from ..families.family import Family
from ..weights.base_location import BaseLocation


class EncoderSource(Protocol):
    """Gives encoders and the image decoder when they are first needed.

    Attributes:
        identity: Names the encoders and everything else that decides what they yield, such as
            their precision; a part of the cache's keys.
    """

    identity: str

    def open(self) -> Encoders:
        """The encoders; the same ones until `close`."""
        ...

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Latents `[B, C, h, w]`, normalised, to pixels `[B, 3, H, W]` in [-1, 1]."""
        ...

    def text_limit(self) -> TextLimit | None:
        """How long captions may be; None where they are read whole."""
        ...

    def close(self) -> None:
        """Drop the encoders and give their memory back; the decoder stays."""
        ...


MakeSource = Callable[[Family, BaseLocation], EncoderSource]
"""Makes the source once the base is located, and with it the variant that is encoded for."""


class LazyEncoders:
    """Loads the encoders when the first sample needs them, and lets go of them.

    Args:
        config: The run file.
        family: The base's family.
        location: Where the base is.
        device: Where the encoders compute.
    """

    def __init__(
        self, config: RunConfig, family: Family, location: BaseLocation, device: torch.device
    ) -> None:
        precision = resolve_precision(config.training.precision, device)
        # In another precision the encoders yield other numbers.
        self.identity = f"{location.identity} {precision}"
        self._load: Callable[[], Encoders] = lambda: family.load_encoders(
            location, DTYPES[precision], device
        )
        self._load_decoder: Callable[[], Callable[[Tensor], Tensor]] = lambda: family.load_decoder(
            location, DTYPES[precision], device
        )
        self._load_counter = lambda: family.load_token_counter(location)
        self._text_length = location.text_length
        self._device = device
        self._loaded: Encoders | None = None
        self._decoder: Callable[[Tensor], Tensor] | None = None

    def open(self) -> Encoders:
        """Load once."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Load the VAE's decoder once; it stays, because previews come again and again."""
        if self._decoder is None:
            self._decoder = self._load_decoder()
        return self._decoder

    def text_limit(self) -> TextLimit:
        """How long captions may be; loads the tokenizer alone."""
        return TextLimit(self._load_counter(), self._text_length)

    def close(self) -> None:
        """Drop the encoders and give their memory back."""
        if self._loaded is not None:
            self._loaded = None
            release_memory(self._device)
