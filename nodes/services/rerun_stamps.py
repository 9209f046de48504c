"""What makes a node run again with the same inputs: lost files, and the Continue button.

Each counts, and the count is in the node's fingerprint.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...trainer_core.config import RunConfig


class OutputWatch:
    """Counts how often cached files went missing; used by the prompt's thread and the server's.

    ComfyUI keeps the output of a node as long as its inputs stay, and does not know of the files
    behind it. A count in a node's fingerprint lets it make them again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, set[str]] = {}
        self._missing = 0

    def missing_count(self, folder: Path) -> int:
        """How often files that were there before had gone at a later look."""
        from ...trainer_core.data.cache.cache_file import cache_folders

        now = {
            f"{kind.name}/{path.name}"
            for kind in cache_folders(folder)[1:]
            for path in kind.glob("*.safetensors")
        }
        with self._lock:
            self._missing += bool(self._seen.get(folder, set()) - now)
            self._seen[folder] = now
            return self._missing


class AdapterWatch:
    """Counts how often an adapter that a train node handed on was lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handed: dict[tuple[str, str | None], Path] = {}
        self._missing: dict[tuple[str, str | None], int] = {}

    def hand_on(self, node_id: str, name: str | None, file: Path) -> None:
        """Watch an adapter of a train node's run; the one that it handed on before is forgotten."""
        with self._lock:
            # Before the node runs, a linked name is not known.
            self._handed[node_id, name] = self._handed[node_id, None] = file

    def missing_count(self, node_id: str, name: str | None) -> int:
        """How often the adapter had gone at a look; the name is None where it is not known."""
        key = node_id, name
        with self._lock:
            file = self._handed.get(key)
            if file is not None and not file.is_file():
                del self._handed[key]
                self._missing[key] = self._missing.get(key, 0) + 1
            return self._missing.get(key, 0)


class Continuation(NamedTuple):
    """What a button of the panel has promised of a node's next run.

    Attributes:
        folder: The version folder that it goes on in, or the checkpoint; None leaves that to the
            settings.
        seed: The run's own, which ComfyUI may have changed since.
        steps: How long it is from now on; 0 as it was.
    """

    folder: Path | None = None
    seed: int | None = None
    steps: int = 0

    def applied(self, config: RunConfig) -> RunConfig:
        """The run file that keeps the promise."""
        from ...trainer_core.config.defaults import with_length

        if self.folder is not None:
            seed = config.seed if self.seed is None else self.seed
            config = config.model_copy(update={"resume": str(self.folder), "seed": seed})
        return with_length(config, self.steps) if self.steps else config


class ContinueCount:
    """Counts how often it was asked that a train node's finished or stopped run goes on.

    ComfyUI would hand on what the node gave the last time; the count is in its fingerprint.
    """

    _MOST = 1000
    _PLACE = "adapter_trainer"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, int] = OrderedDict()
        self._continuations: dict[str, Continuation] = {}
        self._queued: OrderedDict[str, Continuation] = OrderedDict()

    def note(self, node_id: str, continuation: Continuation) -> None:
        """Let the node's next run go on."""
        with self._lock:
            self._asked[node_id] = self._asked.pop(node_id, 0) + 1
            self._continuations[node_id] = continuation
            while len(self._asked) > self._MOST:
                self._continuations.pop(self._asked.popitem(last=False)[0], None)

    def forget(self, node_id: str) -> None:
        """Let nothing of what was asked of a node go on."""
        with self._lock:
            self._continuations.pop(node_id, None)

    def bind(self, queued: Any) -> None:
        """Tie what was asked to the prompt that is queued next, so that it ends with that one.

        What is sent to ComfyUI's queue gets a name for each promise that it keeps.
        """
        prompt = queued.get("prompt") if isinstance(queued, dict) else None
        with self._lock:
            continuation, self._continuations = self._continuations, {}
            there = prompt if isinstance(prompt, Mapping) else {}
            kept = {node: each for node, each in continuation.items() if node in there}
            names = {node: os.urandom(8).hex() for node in kept}
            self._queued.update((names[node], each) for node, each in kept.items())
            while len(self._queued) > self._MOST:
                self._queued.popitem(last=False)
        if names:
            extra = queued.get("extra_data")
            queued["extra_data"] = {
                **(extra if isinstance(extra, dict) else {}),
                self._PLACE: names,
            }

    def take(self, node_id: str, extra: Any) -> Continuation:
        """What a node's run is to go on with, by the prompt's ``extra_data``; asked for once."""
        with self._lock:
            return self._queued.pop(self._promise(node_id, extra), Continuation())

    def promised(self, node_id: str, extra: Any) -> Continuation:
        """What `take` will give."""
        with self._lock:
            return self._queued.get(self._promise(node_id, extra), Continuation())

    def _promise(self, node_id: str, extra: Any) -> str:
        names = extra.get(self._PLACE) if isinstance(extra, Mapping) else None
        return str(names.get(node_id) if isinstance(names, Mapping) else None)

    def count(self, node_id: str) -> int:
        """How often it was asked."""
        with self._lock:
            return self._asked.get(node_id, 0)


def train_stamp(node_id: str, name: str | None) -> str:
    """Changes when a train node has to run although its inputs are the same."""
    return f"{ADAPTERS.missing_count(node_id, name)}/{CONTINUED.count(node_id)}"


WATCH = OutputWatch()
ADAPTERS = AdapterWatch()
CONTINUED = ContinueCount()
