"""Names that other programs give to files in a dataset's folder, and what they say of them."""

from __future__ import annotations

from collections.abc import Mapping

FOLDERS: Mapping[str, str] = {
    "_controls": "ai-toolkit: control images",
    "_latent_cache": "ai-toolkit: cache",
    "_t_e_cache": "ai-toolkit: cache",
    "_clip_vision_cache": "ai-toolkit: cache",
    "_face_id_cache": "ai-toolkit: cache",
    "_thumbs": "thumbnails",
    "@eadir": "Synology: thumbnails",
    "__macosx": "macOS: what an archive remembers of its files",
}
"""Names of folders in lower case. They are not read as a part of a folder that holds them."""

MASK = "-masklabel"
"""What names of OneTrainer's masks end in."""

CONDITION = "-condlabel"
"""What names of OneTrainer's condition images end in."""
