"""Make the files that a cache lacks: decoded ahead in threads, encoded in batches."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...config import CacheSection
from ...errors import DatasetError
from ...filesystem.storage import require_folder
from ...tensors.rounding import all_finite
from ...types import CONTROL, ENDS, SOUND, Conditioning, Sound
from ..image import on_white, to_pixels
from ..motion import Motion
from ..sounds import read_sound
from .cache_file import Entry, is_sound, write_entry
from .encoder_protocols import Encoders, encode_endpoints, encode_texts, of_clips
from .entry_keys import EntryKeys, ImageTask, PlainTask, SizedImage, TextTask
from .file_index import CacheIndex
from .work_claims import Claims

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WAIT_SECONDS = 0.05

Task = ImageTask | TextTask | PlainTask
_Item = TypeVar("_Item")


@dataclass(slots=True)
class Maker:
    """Makes what is missing.

    Attributes:
        open_encoders: Loads the encoders; called at most once.
        notify: Hears how many files are done, of how many.
        options: How many are encoded at once, the number format that latents and texts are kept in,
            and whether files are read before they are believed.
        missing: Keys that are to be made.
        failed: Keys that could not be made, and why.
        tokens: Text tokens of what was made here.
        moving: What may be a mistake in the clips that were made: kind, name and place of each.
    """

    keys: EntryKeys
    open_encoders: Callable[[], Encoders]
    notify: Callable[[int, int], None]
    index: CacheIndex
    claims: Claims
    options: CacheSection = field(default_factory=CacheSection)
    encoded: int = 0
    missing: set[str] = field(default_factory=set)
    failed: dict[str, DatasetError] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    moving: list[tuple[str, str, str]] = field(default_factory=list)
    _total: int = 0
    _encoders: Encoders | None = None

    def begin(self, missing: Iterable[str]) -> None:
        """Say what is missing, before anything of it is made.

        Raises:
            StorageError: When something is, and the cache takes no files.
        """
        self.missing = set(missing)
        self._total = len(self.missing)
        if self._total:
            require_folder(self.keys.folder)
            self.notify(0, self._total)

    def make(self, tasks: Iterable[Task]) -> None:
        """Make what is missing of some tasks, and wait for what another process is at.

        Raises:
            DatasetError: When something cannot be read and nothing is to be skipped, or does not
                encode to finite numbers.
            StorageError: When the cache cannot be written.
        """
        left = self._pass(tasks)
        while left:
            time.sleep(_WAIT_SECONDS)
            # Tells how far it is; and is where the user can stop it.
            self.notify(self._total - len(self.missing), self._total)
            left = self._pass(left)

    def _pass(self, tasks: Iterable[Task]) -> list[Task]:
        """Make what no other process is at; gives back the rest."""
        left: list[Task] = []
        batches = alike_batches(self._wanted(tasks), _alike, self.options.batch_size)
        threads = max(1, min(4, os.cpu_count() or 1))
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            try:
                for batch in _ahead(pool, self._prepared, batches, threads):
                    left += self._encode(batch)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return left

    def _wanted(self, tasks: Iterable[Task]) -> Iterator[Task]:
        taken: set[str] = set()
        for task in tasks:
            key = task.entry.key
            if key in taken or key not in self.missing or key in self.failed:
                continue
            taken.add(key)
            if self._came(task.entry):
                self._done(task.entry)
            else:
                yield task

    def _came(self, entry: Entry) -> bool:
        """Whether another process made it since."""
        # Not Path.exists, which raises where a name is too long; writing says so better.
        return os.path.exists(entry.path) and is_sound(  # noqa: PTH110
            entry, thorough=self.options.verify
        )

    def _prepared(self, task: Task) -> Any:
        """What a thread does of a task: read images, or make what needs no encoder."""
        try:
            if isinstance(task, ImageTask) and SOUND in task.source.endpoints:
                return self._decode_sound(task.source)
            if isinstance(task, ImageTask) and task.source.clip is not None:
                return self._decode_clip(task.source)
            if isinstance(task, ImageTask):
                return to_pixels(self._decode(task.source), task.source.channels)
            if isinstance(task, TextTask):
                return [on_white(self._decode(each)) for each in task.images]
            made = task.make()
            for source in task.sources:
                self.keys.hashes.check_unchanged(source)
        except DatasetError as error:
            return error
        return made

    def _encode(self, batch: list[tuple[Task, Any]]) -> list[Task]:
        left: list[Task] = []
        todo: list[tuple[Task, Any]] = []
        try:
            for task, prepared in batch:
                if not self.claims.take(task.entry.key):
                    left.append(task)
                elif self._came(task.entry):
                    self._done(task.entry)
                elif isinstance(prepared, DatasetError):
                    self.fail(task.entry, prepared)
                else:
                    todo.append((task, prepared))
            for (task, _), tensors in zip(todo, self._tensors(todo), strict=True):
                self._keep(task, tensors)
        finally:
            self.claims.release([task.entry.key for task, _ in batch if task not in left])
        return left

    def _tensors(self, batch: Sequence[tuple[Task, Any]]) -> Sequence[Conditioning]:
        """Encode a batch, whose tasks are all of one class."""
        if not batch:
            return []
        first, prepared = batch[0][0], [each for _, each in batch]
        if isinstance(first, PlainTask):
            return prepared
        if self._encoders is None:
            self._encoders = self.open_encoders()
        if isinstance(first, TextTask):
            captions = [task.caption for task, _ in batch if isinstance(task, TextTask)]
            return encode_texts(self._encoders, captions, prepared)
        if isinstance(first, ImageTask) and first.source.clip is not None:
            if SOUND in first.source.endpoints:
                seconds = first.source.clip.seconds
                encode = of_clips(self._encoders).encode_sound
                return [{"latents": encode(each, seconds)} for each in prepared]
            return [self._of_clip(first.source.endpoints, each) for each in prepared]
        latents = self._encoders.encode_image(torch.stack(prepared))
        if latents.ndim != 4 or len(latents) != len(batch):
            shape = list(latents.shape)
            raise ValueError(f"encode_image gave shape {shape}, not [{len(batch)}, C, h, w]")
        return [{"latents": each} for each in latents]

    def _of_clip(self, endpoints: Sequence[str], frames: Tensor) -> Conditioning:
        """Latents of a clip `[T, 3, H, W]`, and what the base is given of it."""
        assert self._encoders is not None
        encoders = of_clips(self._encoders)
        if CONTROL in endpoints:
            return {"latents": encoders.encode_control(frames)}
        tensors = {"latents": encoders.encode_clip(frames)}
        for kind in endpoints:
            last = frames[-1] if kind == ENDS else None
            tensors |= encode_endpoints(encoders, frames[0], last, len(frames))
        return tensors

    def _keep(self, task: Task, tensors: Conditioning) -> None:
        what = str(task.source.path) if isinstance(task, ImageTask) else task.what
        _require_finite(tensors, what)
        dtype = self.options.dtype
        if dtype != "auto" and not isinstance(task, PlainTask):
            tensors = _as_dtype(tensors, dtype, what)
        # A part of a batch keeps the whole of it in memory, and would be written with it.
        tensors = {name: each.clone() for name, each in tensors.items()}
        write_entry(task.entry, tensors)
        self.tokens[task.entry.key] = self.index.record(task.entry, tensors)
        self.encoded += 1
        self._done(task.entry)

    def _done(self, entry: Entry) -> None:
        self.missing.discard(entry.key)
        self.notify(self._total - len(self.missing), self._total)

    def fail(self, entry: Entry, error: DatasetError) -> None:
        """Leave the samples out that need a file; unless nothing is to be skipped.

        Raises:
            DatasetError: The one that is given.
        """
        if self.keys.settings.unreadable == "error":
            raise error
        self.failed[entry.key] = error

    def _decode(self, source: SizedImage) -> Image.Image:
        hashes = self.keys.hashes
        image = source.sized(self.keys.settings.animated, hashes.of(source.path))
        hashes.check_unchanged(source.path)
        return image

    def _decode_sound(self, source: SizedImage) -> Sound:
        assert source.clip is not None
        self.keys.hashes.of(source.path)
        sound = read_sound(source.path, source.clip)
        self.keys.hashes.check_unchanged(source.path)
        return sound

    def _decode_clip(self, source: SizedImage) -> Tensor:
        """`[T, 3, H, W]`, uint8: in floats a clip would take four times as much while it waits."""
        assert source.clip is not None
        hashes, motion = self.keys.hashes, Motion(source.clip)
        hashes.of(source.path)
        # What steers a clip, or shows it mirrored, is not a clip of its own.
        looks = CONTROL not in source.endpoints and not source.flipped
        frames: list[Tensor] = []
        for image in source.frames():
            if looks:
                motion.look(image)
            frames.append(torch.from_numpy(np.array(image)))
        hashes.check_unchanged(source.path)
        if looks:
            self.moving += ((kind, source.path.name, place) for kind, place in motion.found())
        return torch.stack(frames).permute(0, 3, 1, 2)


@contextlib.contextmanager
def opened_maker(
    keys: EntryKeys,
    open_encoders: Callable[[], Encoders],
    notify: Callable[[int, int], None],
    options: CacheSection,
) -> Iterator[Maker]:
    """A maker for as long as a block; the arguments are its attributes."""
    index = CacheIndex(keys.folder)
    with Claims(keys.folder) as claims:
        try:
            yield Maker(keys, open_encoders, notify, index=index, claims=claims, options=options)
        finally:
            index.close()


def alike_batches(
    items: Iterable[_Item], alike: Callable[[_Item], Hashable], size: int
) -> Iterator[list[_Item]]:
    """Batches of items that are alike, each as soon as it is full; the rest at the end."""
    open_batches: dict[Hashable, list[_Item]] = {}
    for item in items:
        kind = alike(item)
        batch = open_batches.setdefault(kind, [])
        batch.append(item)
        if len(batch) >= size:
            yield open_batches.pop(kind)
    yield from open_batches.values()


def _alike(task: Task) -> Hashable:
    """What the tasks of a batch agree in."""
    if isinstance(task, ImageTask) and task.source.clip is not None:
        # Encoded one by one: several would only wait for each other in memory.
        return "clip", task.entry.key
    if isinstance(task, ImageTask):
        return "image", task.source.bucket, task.source.channels
    if isinstance(task, TextTask):
        return "text", tuple(each.bucket for each in task.images)
    return "plain", None


def _ahead(
    pool: ThreadPoolExecutor,
    prepare: Callable[[Task], Any],
    batches: Iterator[list[Task]],
    least: int,
) -> Iterator[list[tuple[Task, Any]]]:
    """Batches with what threads prepared of them; the next one, or a few, are at work meanwhile."""
    waiting: deque[list[tuple[Task, Future[Any]]]] = deque()
    count = 0
    for batch in batches:
        waiting.append([(task, pool.submit(prepare, task)) for task in batch])
        count += len(batch)
        if len(waiting) > 1 and count > least:
            ready = waiting.popleft()
            count -= len(ready)
            yield [(task, future.result()) for task, future in ready]
    for ready in waiting:
        yield [(task, future.result()) for task, future in ready]


def _as_dtype(tensors: Mapping[str, Tensor], dtype: str, what: str) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kept[name] = tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
        if not all_finite(kept[name]):
            most = float(tensor.abs().max())
            raise DatasetError(
                f"{what} has numbers up to {most:.3g} in {name}, and cache.dtype is {dtype}, "
                f"which ends at {torch.finfo(DTYPES[dtype]).max:.3g}",
                "latents and text embeddings that the format can hold",
                "Set cache.dtype to bf16 or auto.",
            )
    return kept


def _require_finite(tensors: Conditioning, what: str) -> None:
    for name, tensor in tensors.items():
        if not all_finite(tensor):
            raise DatasetError(
                f"{what} does not encode to finite numbers ({name})",
                "finite latents and text embeddings",
                "Encode in a wider precision with training.precision=fp32, or remove the sample.",
            )
