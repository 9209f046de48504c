"""What killed commands left where a node is about to write."""

from __future__ import annotations

import logging
from pathlib import Path

from ...trainer_core.filesystem.temporary import remove_leftovers

_logger = logging.getLogger(__name__)


def clear_leftovers(*folders: Path) -> None:
    """Remove it, and say so in ComfyUI's log.

    Args:
        folders: Where something is about to be written; some may be absent.
    """
    for note in remove_leftovers(*folders):
        _logger.warning(note)
