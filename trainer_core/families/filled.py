"""Control images whose transparent area a base fills (`LatentSpec.filled`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..weights.base_location import BaseLocation
    from .family import Family


def control_shape(
    family: Family, location: BaseLocation, width: int, height: int
) -> tuple[int, int, int]:
    """As `Family.latent_shape`, of a control image."""
    channels, *_, high, wide = family.latent_shape(location, width, height)
    if location.variant in family.latents.filled:
        channels += (height // high) * (width // wide)
    return channels, high, wide


def control_channels(family: Family, variant: str) -> int:
    """Channels of a control image's pixels."""
    return 4 if variant in family.latents.filled else family.pixel_channels(variant)
