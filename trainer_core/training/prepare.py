"""From a run file to encoded samples: everything before the first step.

The encoders live only inside this module's functions, so their memory is free again before the
denoiser is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..config import RunConfig
from ..data.buckets import Plan, plan_buckets
from ..data.cache import CachedDataset, Encoders, build_cache
from ..data.folder import scan
from ..errors import ConfigError
from ..families import get_family
from ..families.family import Family
from ..families.location import BaseLocation, locate_base
from .memory import DTYPES, release_memory, resolve_precision
from .observer import CacheProgress, Observer, Warned
from .processes import Processes
from .prompts import EncodedPrompt, encode_prompts
from .sampling import Painter


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs before it loads the denoiser.

    Attributes:
        family: The base's family.
        location: Where the base is.
        plan: Samples with their sizes.
        dataset: The encoded samples.
        prompts: The encoded preview prompts.
    """

    family: Family
    location: BaseLocation
    plan: Plan
    dataset: CachedDataset
    prompts: tuple[EncodedPrompt, ...]
    encoders: LazyEncoders

    def painter(self, transformer: torch.nn.Module, device: torch.device) -> Painter:
        """Draw on a denoiser of this base.

        Args:
            transformer: The denoiser.
            device: Where it lives.

        Returns:
            A painter that decodes with this base's VAE.
        """
        return Painter(self.family, self.location, transformer, self.encoders.decoder(), device)


def cache_folder(config: RunConfig) -> Path:
    """Where the run file keeps encoded samples."""
    return Path(config.cache.dir) if config.cache.dir else Path(config.output.dir) / "cache"


def prepare(config: RunConfig, observer: Observer, processes: Processes) -> Prepared:
    """Scan, plan and encode, or read what is encoded already.

    Args:
        config: The run file.
        observer: Hears progress and warnings.
        processes: The first process encodes; the others wait and read.

    Returns:
        Everything the run needs before the denoiser.

    Raises:
        InputError: When dataset, base or previews cannot be used.
    """
    if not config.dataset.path:
        raise ConfigError(
            "dataset.path: nothing",
            "a folder with pictures and captions",
            "Set dataset.path in the run file or on the command line: dataset.path=FOLDER.",
        )
    found = scan(config.dataset)
    if processes.index == 0:
        for problem in found.problems:
            observer.notify(Warned(problem))
    has_controls = any(sample.controls for sample in found.samples)
    family = get_family(config.family)
    location = locate_base(config.base, family.name, has_controls)
    plan = plan_buckets(found.samples, config.dataset, family.size_multiple, family.control_size)
    encoders = LazyEncoders(config, family, location, processes.device)
    # In another precision the encoders yield other numbers.
    precision = resolve_precision(config.training.precision, processes.device)
    identity = f"{location.identity} {precision}"

    def build() -> tuple[CachedDataset, tuple[EncodedPrompt, ...]]:
        dataset = build_cache(
            plan,
            cache_folder(config),
            identity,
            encoders.open,
            config.dataset,
            lambda done, total: observer.notify(CacheProgress(done, total)),
            verify=config.cache.verify,
        )
        prompts = encode_prompts(
            config.preview, config.dataset, family, cache_folder(config), identity, encoders.open
        )
        return dataset, prompts

    if processes.index == 0:
        dataset, prompts = build()
        processes.barrier()
    else:
        processes.barrier()
        dataset, prompts = build()
    encoders.close()
    if processes.index == 0:
        for note in (*plan.notes, *dataset.problems):
            observer.notify(Warned(note))
    return Prepared(family, location, plan, dataset, prompts, encoders)


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
        self._load: Callable[[], Encoders] = lambda: family.load_encoders(
            location, DTYPES[precision], device
        )
        self._load_decoder: Callable[[], Callable[[Tensor], Tensor]] = lambda: family.load_decoder(
            location, DTYPES[precision], device
        )
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

    def close(self) -> None:
        """Drop the encoders and give their memory back."""
        if self._loaded is not None:
            self._loaded = None
            release_memory(self._device)
