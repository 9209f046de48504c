"""What differs between families when the graph's own CLIP and VAE encode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .inputs import Clip, TextEncoder
from .pictures import VaeFacts


@dataclass(frozen=True, slots=True)
class GraphFamily:
    """One architecture, as ComfyUI's graph has it.

    Attributes:
        name: As in `trainer_core.families.FAMILIES`.
        controls: Variant to the least and the largest number of control pictures.
        clip_remedy: Which loader and type to use for the CLIP.
        require_fitting_clip: Raises InputError for a CLIP of another model.
        make_text: (CLIP, variant, text length or None) to what encodes captions.
        vae: The VAE.
        unused_weights: Of the CLIP, those that the encoded text does not depend on.
    """

    name: str
    controls: Mapping[str, tuple[int, int]]
    clip_remedy: str
    require_fitting_clip: Callable[[Clip], None]
    make_text: Callable[[Clip, str, int | None], TextEncoder]
    vae: VaeFacts
    unused_weights: tuple[str, ...] = ()
