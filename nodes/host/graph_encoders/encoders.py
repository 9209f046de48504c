"""The graph's CLIP and VAE behind the trainer's own contract for encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import BaseModelError, ConfigError
from .fingerprint import weights_fingerprint
from .inputs import Clip, Vae, require
from .pictures import GraphVae, require_fitting_vae
from .text import GraphText, require_fitting_clip

if TYPE_CHECKING:
    from torch import Tensor

    from ....trainer_core.data.cache import Encoders
    from ....trainer_core.data.captions import TextLimit
    from ....trainer_core.families.family import Family, GraphSpec
    from ....trainer_core.types import Conditioning


class GraphEncoders:
    """The encoders of one family and variant; made by `graph_encoders`.

    CLIP and VAE stay ComfyUI's: it loads them when they are used and keeps or unloads them.

    Args:
        name: The family's name.
        spec: What the family says of CLIP and VAE.
        variant: One of the family's variants.
        clip: The CLIP input's value.
        vae: The VAE input's value.
        text_length: As `graph_encoders` takes it.
    """

    def __init__(
        self,
        name: str,
        spec: GraphSpec,
        variant: str,
        clip: Clip | None,
        vae: Vae | None,
        text_length: int | None,
    ) -> None:
        self._name = name
        self._spec = spec
        self._variant = variant
        self._clip = clip
        self._vae = vae
        self._text_length = text_length
        self._opened: _OpenedEncoders | None = None

    @cached_property
    def identity(self) -> str:
        """Names everything that the encoded tensors depend on, for the cache's keys.

        That is family, variant, text length, template and tokenizer, and the weights of CLIP and
        VAE with their precision and patches.
        """
        parts = ["comfyui", self._name, self._variant]
        if self._clip is not None:
            signature = self._make_text().signature().encode()
            parts.append("clip " + hashlib.sha256(signature).hexdigest()[:32])
            model, patcher = self._clip.cond_stage_model, self._clip.patcher
            parts.append(weights_fingerprint(model, patcher, self._spec.clip.unused_weights))
        if self._vae is not None:
            parts.append(f"vae {getattr(self._vae, 'vae_dtype', 'unknown')}")
            parts.append(weights_fingerprint(self._vae.first_stage_model, self._vae.patcher))
        return " ".join(parts)

    def open(self) -> Encoders:
        """Encoders in the trainer's convention; nothing is loaded before they are used.

        Their methods raise InputError when the input that they need is not connected.
        """
        if self._opened is None:
            self._opened = _OpenedEncoders(self._make_text, self._make_vae)
        return self._opened

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """What turns normalised latents `[B, C, h, w]` into pixels `[B, 3, H, W]` in [-1, 1].

        Raises:
            InputError: When no VAE is connected.
        """
        return self._make_vae("to decode previews").decode

    def text_limit(self) -> TextLimit | None:
        """How long captions may be; None without a CLIP, and where they are read whole."""
        return self._make_text().limit() if self._clip is not None else None

    def close(self) -> None:
        """Let go of the opened encoders; the weights are ComfyUI's to unload.

        `decoder` goes on working, because previews come again and again.
        """
        self._opened = None

    def _make_text(self) -> GraphText:
        clip = require(self._clip, "CLIP", "to encode captions", self._spec.clip.remedy)
        return GraphText(clip, self._spec, self._variant, self._text_length)

    def _make_vae(self, purpose: str = "to encode pictures") -> GraphVae:
        spec = self._spec.vae
        return GraphVae(require(self._vae, "VAE", purpose, spec.remedy), spec)


class _OpenedEncoders:
    """`trainer_core.data.cache.Encoders` on CLIP and VAE of the graph."""

    def __init__(
        self, make_text: Callable[[], GraphText], make_vae: Callable[[], GraphVae]
    ) -> None:
        self._make_text = make_text
        self._make_vae = make_vae

    def encode_image(self, pixels: Tensor) -> Tensor:
        return self._make_vae().encode(pixels)

    def encode_text(self, caption: str, controls: Sequence[Any] = ()) -> Conditioning:
        return self._make_text().encode(caption, controls)


def graph_encoders(
    family: Family,
    variant: str,
    clip: Clip | None,
    vae: Vae | None,
    text_length: int | None,
) -> GraphEncoders:
    """Wrap what is connected to a node's CLIP and VAE inputs.

    Args:
        family: The base's family.
        variant: The base's variant, such as ``generate``; not ``auto``.
        clip: The CLIP input's value; None where nothing is connected.
        vae: The VAE input's value; None where nothing is connected.
        text_length: Text tokens, as the run file's ``base.text_length``. Unset: what ComfyUI does
            with the family, which may be as many as the caption has.

    Returns:
        Encoders, decoder and their identity. What is missing is an error only once it is used.

    Raises:
        InputError: When a CLIP or VAE belongs to another model.
        BaseModelError: When the family has no encoders in ComfyUI's graph.
        ConfigError: When the family does not have the variant.
    """
    spec = family.graph
    if spec is None:
        raise BaseModelError(
            f"the family {family.name!r} with CLIP and VAE of the graph",
            "a family whose CLIP and VAE the nodes know",
            "Leave CLIP and VAE unconnected, or choose another base.",
        )
    if variant not in spec.controls:
        raise ConfigError(
            f"base.variant: {variant!r} with the family {family.name}",
            f"one of {', '.join(spec.controls)}",
            "Choose one of these.",
        )
    if clip is not None:
        require_fitting_clip(clip, spec.clip)
    if vae is not None:
        require_fitting_vae(vae, spec.vae)
    return GraphEncoders(family.name, spec, variant, clip, vae, text_length)
