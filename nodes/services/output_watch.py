"""Notices that files have gone, so that ComfyUI makes them again instead of remembering.

ComfyUI keeps the output of a node as long as its inputs stay, and does not know of the files behind
it: the encoded samples of Cache Embeddings, the adapter of Train Adapter.
"""

from __future__ import annotations

import threading
from pathlib import Path


class CacheWatch:
    """Counts how often files of the cache were lost; used by the prompt's thread and the server's.

    Args:
        kinds: The cache's folders that are watched.
    """

    def __init__(self, kinds: tuple[str, ...] = ("latents", "text", "prompts")) -> None:
        self._kinds = kinds
        self._lock = threading.Lock()
        self._seen: dict[Path, set[str]] = {}
        self._losses = 0

    def losses(self, folder: Path) -> int:
        """How often files that were there before had gone at a later look.

        Args:
            folder: The cache's folder; it need not exist.
        """
        now = {
            f"{kind}/{path.name}"
            for kind in self._kinds
            for path in (folder / kind).glob("*.safetensors")
        }
        with self._lock:
            self._losses += bool(self._seen.get(folder, set()) - now)
            self._seen[folder] = now
            return self._losses


class AdapterWatch:
    """Counts how often an adapter that a train node handed on was lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handed: dict[tuple[str, str | None], Path] = {}
        self._losses: dict[tuple[str, str | None], int] = {}

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

    def losses(self, node_id: str, name: str | None) -> int:
        """How often the adapter had gone at a look; arguments as for `hand_on`."""
        key = node_id, name
        with self._lock:
            file = self._handed.get(key)
            if file is not None and not file.is_file():
                del self._handed[key]
                self._losses[key] = self._losses.get(key, 0) + 1
            return self._losses.get(key, 0)


WATCH = CacheWatch()
ADAPTERS = AdapterWatch()
