"""Notices that files have gone, so that ComfyUI makes them again instead of remembering.

ComfyUI keeps the output of a node as long as its inputs stay, and does not know of the files behind
it: the encoded samples of Cache Embeddings, the adapter of Train Adapter.
"""

from __future__ import annotations

import threading
from pathlib import Path


class OutputWatch:
    """Counts how often cached files went missing; used by the prompt's thread and the server's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, set[str]] = {}
        self._missing = 0

    def missing_count(self, folder: Path) -> int:
        """How often files that were there before had gone at a later look.

        Args:
            folder: The cache's folder; it need not exist.
        """
        from ...trainer_core.data.cache_file import cache_folders

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
        """Watch an adapter; the one that the node handed on before is forgotten.

        Args:
            node_id: The train node.
            name: The run's name; None where it is not known.
            file: The adapter.
        """
        with self._lock:
            # Before the node runs, a linked name is not known.
            self._handed[node_id, name] = self._handed[node_id, None] = file

    def missing_count(self, node_id: str, name: str | None) -> int:
        """How often the adapter had gone at a look; arguments as for `hand_on`."""
        key = node_id, name
        with self._lock:
            file = self._handed.get(key)
            if file is not None and not file.is_file():
                del self._handed[key]
                self._missing[key] = self._missing.get(key, 0) + 1
            return self._missing.get(key, 0)


WATCH = OutputWatch()
ADAPTERS = AdapterWatch()
