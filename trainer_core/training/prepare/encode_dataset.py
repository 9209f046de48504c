"""From a run file to encoded samples, or to the list of samples that are encoded already.

The encoders live only inside this module's functions, so their memory is free again before the
denoiser is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ...bases.locate import locate_base
from ...config import DatasetSection, RunConfig
from ...config.defaults import preservation_prompts
from ...data.base_requirements import (
    endpoint_kinds,
    require_bare_texts,
    require_clips,
    require_control_images,
    require_counting_masks,
    require_droppable,
    require_endpoints,
    require_steering,
)
from ...data.buckets import Plan, plan_buckets
from ...data.cache.build_cache import build_cache, cache_folder
from ...data.cache.cache_file import cache_folders
from ...data.cache.cached_dataset import CachedDataset
from ...data.cache.entry_keys import EntryKeys, encoded_as
from ...data.cache.item_columns import hex_keys
from ...data.cache.remove_unused import GIGABYTE, Collected, remove_unused
from ...data.cache.slider_dataset import build_slider, slider_size
from ...data.captions.length import caption_tokens, long_caption_notes, may_be_long
from ...data.captions.notes import caption_notes
from ...data.clips import read_frames
from ...data.drawn_masks import with_areas
from ...data.file_memory import FileMemory
from ...data.masks import require_masks_fit
from ...data.report.make_report import warnings_before
from ...data.sources.folder_problems import Scan
from ...data.sources.layer_files import require_layers
from ...data.sources.scan_dataset import scan_all
from ...errors import ConfigError
from ...families.family import Family
from ...families.registry import get_family
from ...filesystem.allowed_folders import AllowedFolders
from ...filesystem.temporary import remove_leftovers
from ...inference.encoder_source import EncoderSource, LazyEncoders, MakeSource
from ...inference.preview_prompts import EncodedPrompt, encode_prompts
from ...inference.sampler import Sampler
from ...offload.machine import Machine
from ...types import ANY_CLIPS, ClipPart, FrameGrid, Sample
from ...weights.base_location import BaseLocation, file_identity, folder_identity
from ...weights.loading import file_settings
from ..observer import Noted, Observer, RunCancelledError, Warned, report_progress
from ..step.processes import Processes, cancel_together
from .cache_manifest import SUFFIX, Manifest, check_texts, read_manifest, write_manifest
from .finished_cache import check_finished, require_variant, unmet_settings

Encoded = tuple[CachedDataset, tuple[EncodedPrompt, ...]]
"""The samples of a run, and its preview prompts."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs before it loads the denoiser.

    Attributes:
        encoders: Where the decoder for previews comes from.
    """

    family: Family
    location: BaseLocation
    dataset: CachedDataset
    prompts: tuple[EncodedPrompt, ...]
    encoders: EncoderSource

    def samples_per_bucket(self) -> dict[str, int]:
        """Number of trained samples of each size, named like ``"64x64"``, in order of size."""
        held = zip(self.dataset.buckets, self.dataset.validations, strict=True)
        counts = Counter(size for size, is_held in held if not is_held)
        return {str(size): counts[size] for size in sorted(counts)}

    def sampler(self, transformer: torch.nn.Module, device: torch.device) -> Sampler:
        """Generate on a denoiser of this base, and decode with its VAE."""
        return Sampler(
            self.family, self.location, transformer, decode=self.encoders.decoder(), device=device
        )


def prepare(
    config: RunConfig,
    observer: Observer,
    processes: Processes,
    make_source: MakeSource | None = None,
    within: AllowedFolders | None = None,
    machine: Machine | None = None,
    family: Family | None = None,
    check: Callable[[BaseLocation], None] | None = None,
) -> Prepared:
    """Scan, plan and encode, or read what is encoded already.

    Args:
        processes: The first process encodes; the others wait and read.
        make_source: Gives the encoders; unset: they come from the base or ``base.encoders``.
        within: What the dataset's files really have to lie in; None follows every link.
        machine: What the encoders may take of the computer; unset: all that is free.
        family: The base's, where the caller made it; unset: the one that the run file names.
        check: May refuse the base that was found, before anything is encoded for it.

    Raises:
        InputError: When dataset, base or previews cannot be used.
        RunCancelledError: In every process, when the first was cancelled while it encoded.
    """
    family = (family or get_family(config.family)).of_base(config.base)
    _keep_cache_within(config, within)
    if config.cache.manifest:
        finished = read_finished(
            config, family, processes, make_source=make_source, machine=machine
        )
        if check is not None:
            check(finished.location)
        _warn(observer, processes, unmet_settings(config, finished.dataset))
        return finished
    memory = FileMemory(cache_folder(config), trust=not config.cache.verify)
    endpoints = endpoint_kinds(config.dataset, family.starts)
    found = _scan(config, within, memory, family.clips)
    _warn(observer, processes, found.problems)
    edits = any(sample.controls for sample in found.samples)
    located = locate_base(config.base, family, edits, needs_encoders=make_source is None)
    location = family.joined(located, config)
    require_variant(config, family, location.variant)
    if check is not None:
        check(location)
    samples = _trainable(found.samples, config.dataset, family, location.variant)
    plan = plan_buckets(
        samples, config.dataset, family.latents.size_multiple, family.latents.control_size
    )
    encoders = _source(
        config, family, location, processes=processes, make_source=make_source, machine=machine
    )
    # An error among these stops before anything is encoded.
    warnings = warnings_before(found.samples, config.dataset, weighs=encoders.weighs)
    warnings = (*warnings, *caption_notes(found.samples, config.dataset))
    if processes.index == 0:
        for note in remove_leftovers(*cache_folders(cache_folder(config))):
            observer.notify(Noted(note))
    else:
        cancel_together(processes, False)  # until the first has encoded; the others then only read
    encode = functools.partial(_encode, config, family, location, plan, memory, encoders, endpoints)
    with contextlib.closing(encoders):
        dataset, prompts = _encode_in_order(encode, observer, processes)
    if processes.index == 0:
        collect_cache(config, dataset, prompts, observer)
        again = (f"{each}, was damaged and is encoded again" for each in dataset.damaged)
        long = _long_captions(config, found.samples, location, encoders)
        notes = (*dataset.problems, *again, *long)
        if endpoints and (first := _first_clip(plan)) and config.preview.prompts:
            beside = "" if not any(config.preview.controls) else " without an image of their own"
            observer.notify(Noted(f"previews{beside} begin with the first frame of {first.name}"))
        _warn(observer, processes, [*plan.notes, *warnings, *notes])
    return Prepared(family, location, dataset, prompts=prompts, encoders=encoders)


def _scan(
    config: RunConfig, within: AllowedFolders | None, memory: FileMemory, grid: FrameGrid | None
) -> Scan:
    """The samples of a run's folders; a slider has none."""
    if config.dataset.slider.is_on:
        return Scan((), ())
    if not config.dataset.path:
        raise ConfigError(
            "dataset.path: nothing",
            "a folder with images and captions",
            "Set dataset.path in the run file or on the command line: dataset.path=FOLDER.",
        )
    return scan_all(config.dataset, within, seed=config.seed, remembered=memory, grid=grid)


def _warn(observer: Observer, processes: Processes, notes: Iterable[str]) -> None:
    """Once, of however many processes."""
    for note in notes if processes.index == 0 else ():
        observer.notify(Warned(note))


def _trainable(
    samples: Sequence[Sample], dataset: DatasetSection, family: Family, variant: str
) -> tuple[Sample, ...]:
    """Samples as a base trains them.

    Raises:
        InputError: When it cannot train such samples.
    """
    require_layers(samples, dataset, variant, family.latents.layered)
    parts = family.pixel_channels(variant), family.latents.filled, family.latents.layered
    require_masks_fit(samples, variant, *parts)
    trained = with_areas(samples, dataset, variant in family.latents.filled)
    require_steering(samples, steered=family.steered)
    images = [each.name for each in samples if each.clip is None]
    require_clips(["the slider's image"] if dataset.slider.is_on else images, family.starts)
    fixed = (*family.latents.layered, *family.latents.filled)
    require_control_images(trained, dataset, variant, fixed)
    require_droppable(dataset, variant, fixed)
    return trained


def _long_captions(
    config: RunConfig, samples: Sequence[Sample], location: BaseLocation, encoders: EncoderSource
) -> Sequence[str]:
    # Most captions are far too short, and then not even the tokenizer is loaded.
    candidates = may_be_long(samples, location.text_length)
    limit = encoders.text_limit() if candidates else None
    if limit is None:
        return ()
    counted = caption_tokens(candidates, limit.count)
    return long_caption_notes(counted, limit.tokens, config.base.text_length)


def _encode_in_order(
    encode: Callable[[Callable[[int, int], None]], Encoded],
    observer: Observer,
    processes: Processes,
) -> Encoded:
    """Encode in the first process, which tells the others to read, or that the run ends."""
    if processes.index > 0:
        return encode(lambda done, total: None)
    try:
        encoded = encode(functools.partial(report_progress, observer, "images and captions"))
    except RunCancelledError:
        cancel_together(processes, True)
        raise
    cancel_together(processes, False)
    return encoded


def _encode(
    config: RunConfig,
    family: Family,
    location: BaseLocation,
    plan: Plan,
    memory: FileMemory,
    encoders: EncoderSource,
    endpoints: tuple[str, ...],
    tell: Callable[[int, int], None],
) -> Encoded:
    folder, variant = cache_folder(config), location.variant
    edits = any(each.control_buckets for each in plan.samples)
    kept = preservation_prompts(config, edits=edits)
    keys = EntryKeys(
        folder,
        encoded_as(encoders.identity, config.cache),
        config.dataset,
        memory,
        channels=family.pixel_channels(variant),
        fills=variant in family.latents.filled,
        shown=variant in family.text.shown,
        grid=functools.cache(functools.partial(family.latent_grid, location)),
        weighs=encoders.weighs,
        endpoints=endpoints,
        clips=family.clips or ANY_CLIPS,
        sounds=encoders.sounds,
    )
    if config.dataset.slider.is_on:
        size = slider_size(config.dataset.resolution, family.latents.size_multiple)
        dataset = build_slider(
            keys, size, encoders.open, tell, preserved_prompts=kept, options=config.cache
        )
    else:
        dataset = build_cache(
            keys, plan, encoders.open, notify=tell, preserved_prompts=kept, options=config.cache
        )
    prompts = encode_prompts(
        config.preview,
        config.dataset,
        family,
        variant=variant,
        folder=folder,
        identity=encoders.identity,
        open_encoders=encoders.open,
        frames=dataset.usual_frames,
        size_step=family.latent_step(location),
        start=_first_frame(plan) if endpoints else None,
        control=_first_control(plan, dataset.usual_frames) if family.steered else None,
    )
    return dataset, prompts


def _first_clip(plan: Plan) -> Sample | None:
    """The clip with which previews begin: of the held-out ones where there are some."""
    clips = [each.sample for each in plan.samples if each.sample.clip is not None]
    return min(clips, key=lambda each: not each.validation, default=None)


def _first_control(plan: Plan, frames: int) -> tuple[Path, ClipPart] | None:
    """The control clip of previews without one of their own, long enough for them."""
    fits = [each.sample for each in plan.samples if each.bucket.frames >= frames]
    found = min(fits, key=lambda each: not each.validation, default=None)
    if found is None or found.clip is None:
        return None
    return found.controls[0], found.clip


def _first_frame(plan: Plan) -> Callable[[], Image.Image] | None:
    sample = _first_clip(plan)
    if sample is None or sample.clip is None:
        return None
    part = replace(sample.clip, frames=1)
    return lambda: next(read_frames(sample.image, part))


def save_manifest(config: RunConfig, prepared: Prepared) -> Path:
    """Write the list of a finished cache, so that it can be trained without its encoders.

    Returns:
        The file, named after the run and the content, in the cache's folder.

    Raises:
        StorageError: When it cannot be written.
    """
    dataset, prompts = prepared.dataset, prepared.prompts
    content = hashlib.sha256(dataset.identity.encode())
    for prompt in prompts:
        content.update(f"{prompt.entry.key} {prompt.text}".encode())
    name = f"{config.output.name}-{content.hexdigest()[:16]}{SUFFIX}"
    path = cache_folder(config) / name
    cache = Manifest(prepared.family.name, prepared.location.variant, dataset, prompts)
    write_manifest(path, cache)
    return path


def collect_cache(
    config: RunConfig,
    dataset: CachedDataset,
    prompts: Sequence[EncodedPrompt],
    observer: Observer,
    *,
    dry: bool = False,
    requested: bool = False,
) -> Collected | None:
    """Keep the cache within ``cache.max_gb``, and say what was removed.

    Args:
        dry: Whether to say only what would be removed.
        requested: Whether to say also that nothing has to be removed, or that another process is
            at it.

    Returns:
        What was done; None where there is no limit, or another process is at it.

    Raises:
        StorageError: When files cannot be removed.
    """
    if config.cache.max_gb is None:
        return None
    others = [prompt.entry.key for prompt in prompts]
    others += [e.key for item in dataset.preserved for e in (*item.controls, item.text)]
    needed = np.concatenate([dataset.items.keys, hex_keys(others)])
    limit = round(config.cache.max_gb * GIGABYTE)
    done = remove_unused(cache_folder(config), limit, needed, dry=dry)
    if done is None and requested:
        observer.notify(Noted("cache: another process makes it smaller at this moment"))
    elif done is not None and (requested or done.removed or done.kept > limit):
        observer.notify(Noted(str(done)))
    return done


def _keep_cache_within(config: RunConfig, within: AllowedFolders | None) -> None:
    listed = config.cache.manifest
    if within is not None:
        within.require_all(Path(listed).parent if listed else cache_folder(config), "cache")


def read_finished(
    config: RunConfig,
    family: Family,
    processes: Processes,
    make_source: MakeSource | None = None,
    machine: Machine | None = None,
) -> Prepared:
    """Read what ``cache.manifest`` lists, as `prepare` does.

    Raises:
        InputError: When it was encoded for another run.
    """
    path = Path(config.cache.manifest or "")
    cache = read_manifest(path)
    if cache.family != config.family:
        raise ConfigError(
            f"family is {config.family}, and the cache {path.name} was encoded for {cache.family}",
            "a cache that was encoded for the base's family",
            "Encode the dataset for this base, or set family.",
        )
    if config.base.variant not in {"auto", cache.variant}:
        raise ConfigError(
            f"base.variant is {config.base.variant}, and the cache {path.name} was encoded for "
            f"{cache.variant}",
            "the same variant",
            f"Set base.variant to {cache.variant} or auto, or encode the dataset again.",
        )
    base = config.base.model_copy(update={"variant": cache.variant})
    has_controls = any(cache.dataset.control_buckets)
    check_finished(config, cache, edits=has_controls)
    require_droppable(
        config.dataset, cache.variant, (*family.latents.layered, *family.latents.filled)
    )
    require_counting_masks(cache.dataset, config.dataset.mask)
    require_endpoints(endpoint_kinds(config.dataset, family.starts), cache.dataset.items)
    images = (each.name for each in cache.dataset.items if each.bucket.frames == 1)
    require_clips(images, family.starts)
    if cache.variant in family.text.shown:
        require_bare_texts(config.dataset, cache.dataset.items)
    located = locate_base(base, family, has_controls, needs_encoders=False)
    location = family.joined(located, config)
    check_texts(cache, family, tokens=location.reads_tokens)
    if config.preview.every > 0 and make_source is None:
        _require_vae(location)
    encoders = _source(
        config, family, location, processes=processes, make_source=make_source, machine=machine
    )
    return Prepared(family, location, cache.dataset, prompts=cache.prompts, encoders=encoders)


def _source(
    config: RunConfig,
    family: Family,
    location: BaseLocation,
    processes: Processes,
    make_source: MakeSource | None,
    machine: Machine | None,
) -> EncoderSource:
    if make_source is not None:
        return make_source(family, location)
    return LazyEncoders(config, family, location, device=processes.device, machine=machine)


def _require_vae(location: BaseLocation) -> None:
    folder = location.encoders / "vae"
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"preview.every is set, and there is no VAE at {folder}",
            "a VAE that turns the previews into images",
            "Name a Diffusers folder with a VAE as base.encoders, or set preview.every to 0.",
        )


def content_hashes(data: Prepared) -> dict[str, str]:
    """Name the content of a run's ``base`` and ``dataset``."""
    # The location's identity names the encoders alone, because cached samples depend on no more.
    location = data.location
    if data.family.lent is not None:
        return {"base": data.family.lent.fingerprint, "dataset": data.dataset.identity}
    settings = [location.identity]
    if location.file is not None:
        # The folder then holds no weights, and the file itself may say how they are used.
        found = file_settings(location, data.family.files.single_file)
        settings += [file_identity(location.file), json.dumps(found, sort_keys=True)]
    base = folder_identity(location.folder, [location.part], settings)
    return {"base": base, "dataset": data.dataset.identity}
