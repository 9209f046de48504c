"""Notices that encoded files have gone, so that ComfyUI encodes again instead of remembering.

ComfyUI keeps the output of Cache Embeddings as long as its inputs stay, and does not know of the
files behind it.
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


WATCH = CacheWatch()
