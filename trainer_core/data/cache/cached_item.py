"""`CachedItem`: which cached files hold a sample's latents, texts, controls and masks."""

from __future__ import annotations

from dataclasses import dataclass

from ...types import Bucket, View
from .cache_file import Entry

ItemKind = tuple[tuple[Bucket, ...], int, bool]
"""Sizes of control images, number of layers, whether it has a sound."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Where the parts of a mirrored sample are kept.

    Attributes:
        texts: Entries of all captions and of the empty one, where the text encoder sees the control
            images; empty where it does not, and texts are those of the image as it is.
    """

    latents: Entry
    layers: tuple[Entry, ...] = ()
    controls: tuple[Entry, ...] = ()
    mask: Entry | None = None
    texts: tuple[Entry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that is kept of it."""
        masks = (self.mask,) if self.mask else ()
        return (self.latents, *self.layers, *self.controls, *masks, *self.texts)


@dataclass(frozen=True, slots=True)
class CachedItem:
    """Where the parts of one sample are kept; what is not described is as in `Sample`.

    Attributes:
        latents: Entry of the image; of a concept slider, whose images the base has yet to make,
            that of the prompt.
        source: Hash of image, size and caption alone, which is the same in every precision of
            the encoders; empty where it is not known.
        layers: Entries of the layers that it is made of, from the lowest to the topmost.
        bare_texts: Entries of all captions and of the empty one, in this order, as the text encoder
            reads them without the control images; empty where control images are never left out,
            or the text encoder does not see them.
        flipped: The same of the mirrored image; None where it is never mirrored.
        class_texts: Entries of all captions with the class word in the place of the trigger word:
            as they are; behind them, where there are `bare_texts`, without the control images; and
            where there are mirrored texts, with these mirrored. Empty where they are not asked for.
            Of a concept slider its positive and its negative prompt.
        sound: Entry of a clip's sound; None where it has none, or none is trained.
    """

    name: str
    bucket: Bucket
    control_buckets: tuple[Bucket, ...]
    latents: Entry
    controls: tuple[Entry, ...]
    text: Entry
    empty_text: Entry
    regularization: bool = False
    source: str = ""
    layers: tuple[Entry, ...] = ()
    more_texts: tuple[Entry, ...] = ()
    bare_texts: tuple[Entry, ...] = ()
    mask: Entry | None = None
    flipped: Mirrored | None = None
    validation: bool = False
    folder: int = 0
    repeats: int = 1
    weight: float = 1.0
    class_texts: tuple[Entry, ...] = ()
    sound: Entry | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that is kept of it."""
        own = (self.latents, *self.layers, *self.controls, *((self.mask,) if self.mask else ()))
        texts = (self.text, *self.more_texts, self.empty_text, *self.bare_texts)
        flipped = self.flipped.entries if self.flipped else ()
        sound = (self.sound,) if self.sound else ()
        return (*own, *texts, *flipped, *self.class_texts, *sound)

    @property
    def captions(self) -> int:
        """How many texts it has, beside the empty one."""
        return 1 + len(self.more_texts)

    def text_of(self, view: View) -> Entry:
        """The entry of the text that a view is trained with."""
        place = self.captions if view.caption is None else view.caption
        bare = not view.controls and bool(self.bare_texts)
        mirrored = self.flipped.texts if view.flipped and self.flipped is not None else ()
        if view.ordinary and view.caption is not None and self.class_texts:
            side = 1 if bare else 1 + bool(self.bare_texts) if mirrored else 0
            return self.class_texts[side * self.captions + place]
        if bare:
            return self.bare_texts[place]
        return (mirrored or (self.text, *self.more_texts, self.empty_text))[place]

    @property
    def kind(self) -> ItemKind:
        """What the samples of a batch agree in, beside their size."""
        return self.control_buckets, len(self.layers), self.sound is not None


@dataclass(frozen=True, slots=True)
class PreservedItem:
    """A prompt that the base is held to, encoded.

    Attributes:
        bucket: Size in pixels of the image that the base makes of it.
        controls: Entries of the control images that it is given.
        layers: How many the base makes of it.
    """

    prompt: str
    bucket: Bucket
    controls: tuple[Entry, ...]
    text: Entry
    layers: int = 0
