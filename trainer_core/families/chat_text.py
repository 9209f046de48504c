"""Captions as hidden states of a chat model: Qwen3, Qwen3-VL, Mistral and their like.

A caption is put into a chat template, and tokenized. What the denoiser reads are hidden states of
some of the model's blocks, behind the tokens at the beginning that the family drops. The same text
on a graph are rows of ComfyUI's tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..data.captions.length import CountTokens
from ..errors import DatasetError
from ..types import Conditioning
from ..weights.base_location import BaseLocation
from ..weights.loading import load_frozen, load_words
from .diffusers_parts import Vae, load_tokens

if TYPE_CHECKING:
    from PIL.Image import Image

    from .family_specs import LoadVae
    from .graph_spec import Row

_MESSAGE_START = 151644
"""Qwen's token ``<|im_start|>``."""

_MESSAGE_HEAD = 3  # "<|im_start|>user\n"


@dataclass(frozen=True, slots=True)
class ChatText:
    """What a family makes of a caption with its chat model.

    Attributes:
        template: The text that is tokenized, with ``{}`` for the caption.
        states: The hidden states that are read, as transformers counts them: 0 is what the first
            block is given, k what the k-th block gives, and negative numbers count from the last.
        stacked: Whether several are `[L, n, D]` instead of one after the other, `[L, n D]`.
        dropped: The beginning of the template whose tokens the denoiser is not given.
        padded: Whether shorter captions are filled up to the text length. The tokens of the
            padding come behind the text, which does not see them; the denoiser is given them.
        normed: Whether the state of the last block is taken behind the model's final norm.
    """

    template: str
    states: tuple[int, ...]
    stacked: bool = False
    dropped: str = ""
    padded: bool = False
    normed: bool = False

    def fill(self, caption: str) -> str:
        """The text that is tokenized; a caption may have braces of its own."""
        return self.template.replace("{}", caption)


def text_part(model: nn.Module) -> nn.Module:
    """The stack of blocks that reads text: a model without its vision tower and its word head."""
    for name in ("model", "language_model"):
        inner = getattr(model, name, None)
        model = inner if isinstance(inner, nn.Module) else model
    return model


def hidden_states(
    model: nn.Module, states: Sequence[int], inputs: Mapping[str, Any], normed: bool = False
) -> list[Tensor]:
    """Run a model, and take hidden states from its blocks.

    transformers' own ``hidden_states`` depend on its version: the last of them is behind the final
    norm in some, and before it in others. So they are taken here where they arise.

    Args:
        model: A model of transformers, with text blocks in ``layers`` (`text_part`).
        states: As `ChatText.states`.
        inputs: Of the model's ``forward``: ``input_ids`` `[B, L]` and what else it needs.
        normed: As `ChatText.normed`.

    Returns:
        One `[B, L, D]` for each of ``states``, in the model's precision.
    """
    text: Any = text_part(model)
    count = len(text.layers)
    wanted = [each if each >= 0 else count + 1 + each for each in states]
    found: dict[int, Tensor] = {}

    def given(_: nn.Module, arguments: Any, named: Mapping[str, Any]) -> None:
        found[0] = arguments[0] if arguments else named["hidden_states"]

    def made(number: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, arguments: Any, output: Any) -> None:
            found[number] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = (
        [text.layers[0].register_forward_pre_hook(given, with_kwargs=True)] if 0 in wanted else []
    )
    for number in {each for each in wanted if each}:
        source = text.norm if normed and number == count else text.layers[number - 1]
        hooks.append(source.register_forward_hook(made(number)))
    try:
        model(**inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [found[each] for each in wanted]


def text_batch(
    texts: Sequence[Sequence[int]], device: torch.device, masks: Sequence[Sequence[int]] = ()
) -> dict[str, Tensor]:
    """What a text model is given of tokens: ``input_ids`` and ``attention_mask``, `[B, L]`.

    Shorter ones are filled up behind and masked: a causal model's tokens do not see it, nor do
    those of another that heeds the mask. So a text comes out as it does alone, to rounding. Masks
    are 1 for each token that others see; unset, all are seen.
    """
    mask = masks or [[1] * len(text) for text in texts]
    inputs = {"input_ids": texts, "attention_mask": mask}
    return {
        name: pad_sequence(
            [torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True
        ).to(device)
        for name, rows in inputs.items()
    }


def image_places(model: nn.Module, places: Tensor) -> dict[str, Tensor]:
    """Where the image tokens are, for models of transformers whose ``forward`` has to be told.

    Without it transformers 5 numbers the tokens of an image one after another, instead of by row
    and column as the model was trained, as transformers 4 did and as ComfyUI does. `places` `[1,
    L]` are true at tokens of images; gives arguments of ``forward``, or nothing.
    """
    known = inspect.signature(model.forward).parameters
    return {"mm_token_type_ids": places.int()} if "mm_token_type_ids" in known else {}


@dataclass(slots=True)
class ChatEncoders:
    """Encoders of a family whose only text encoder is a chat model that sees no images.

    Attributes:
        chat: What becomes of a caption.
        tokenizer: The base's tokenizer.
        text_encoder: The chat model, of transformers.
        vae: The image encoder.
        text_length: Most text tokens behind those that are dropped; the template's end counts.
        controls: The least and the largest number of control images of a caption.
        variant: The base's variant, for messages.
    """

    chat: ChatText
    tokenizer: Any
    text_encoder: Any
    vae: Vae
    text_length: int
    controls: tuple[int, int]
    variant: str

    @property
    def text_models(self) -> tuple[Any, ...]:
        """The blocks that read text, without a word predictor, whose logits nobody needs."""
        return (text_part(self.text_encoder),)

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32."""
        return self.vae.encode(pixels)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption, which may be empty; the text encoder does not see control images.

        ``text_embeddings``, float32: `[L, n D]`, or `[L, n, D]` where the states are stacked.

        Raises:
            DatasetError: When the number of control images does not fit the variant.
        """
        return self.encode_texts([caption], [controls])[0]

    @torch.no_grad()
    def encode_texts(
        self, captions: Sequence[str], controls: Sequence[Sequence[Image]]
    ) -> list[Conditioning]:
        """As `encode_text` of each, in one pass of the model."""
        for caption, shown in zip(captions, controls, strict=True):
            require_controls(caption, len(shown), self.controls, self.variant)
        start = dropped_tokens(self.chat, lambda text: len(self.tokenizer(text).input_ids))
        words = self.tokenizer(
            [self.chat.fill(caption) for caption in captions],
            truncation=True,
            max_length=start + self.text_length,
            padding="max_length" if self.chat.padded else False,
            padding_side="right",
        )
        (model,) = self.text_models
        device = next(model.parameters()).device
        inputs = text_batch(words["input_ids"], device, words["attention_mask"])
        states = hidden_states(model, self.chat.states, inputs, self.chat.normed)
        rows = [
            torch.stack([state[at, start : len(ids)] for state in states], dim=1).float()
            for at, ids in enumerate(words["input_ids"])
        ]
        return [
            {"text_embeddings": each if self.chat.stacked else each.flatten(1)} for each in rows
        ]


def require_controls(caption: str, count: int, bounds: tuple[int, int], variant: str) -> None:
    """Check how many control images a caption has; `DatasetError` for a wrong number."""
    fewest, most = bounds
    if not fewest <= count <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
        raise DatasetError(
            f"{count} control images for the caption {caption[:60]!r}",
            f"{wanted}, as the base's variant is {variant}",
            "Correct the control images, or base.variant.",
        )


def refuse_image_token(caption: str, token: str) -> None:
    """Refuse a caption with the token that stands for an image, by `DatasetError`."""
    if token in caption:
        raise DatasetError(
            f"the caption {caption[:60]!r} has {token}",
            "a caption without the token that stands for an image",
            "Take it out; the control images are put in by the trainer.",
        )


def dropped_tokens(chat: ChatText, tokens: Callable[[str], int]) -> int:
    """How many tokens of the template's beginning the denoiser is not given."""
    return tokens(chat.dropped) if chat.dropped else 0


def load_chat_encoders(
    kind: str,
    chat: ChatText,
    load_vae: LoadVae,
    controls: tuple[int, int],
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device | str,
) -> ChatEncoders:
    """Load what `Family.load_encoders` gives, of the folders text_encoder, tokenizer and vae.

    The kind of the text encoder is its library and class, such as ``transformers.Qwen3Model``;
    `controls` are the least and the largest number of control images.
    """
    folder = location.encoders
    return ChatEncoders(
        chat=chat,
        tokenizer=load_words("AutoTokenizer", folder, "tokenizer"),
        text_encoder=load_frozen(kind, folder, "text_encoder", dtype=dtype, device=device),
        vae=load_vae(location, dtype, device),
        text_length=location.text_length,
        controls=controls,
        variant=location.variant,
    )


def load_chat_counter(chat: ChatText, location: BaseLocation) -> CountTokens:
    """What `TextSpec.load_token_counter` gives: tokens behind those that are dropped."""
    tokens = load_tokens(location, "tokenizer")
    start = dropped_tokens(chat, tokens)
    return lambda caption, images: tokens(chat.fill(caption)) - start


def second_message(row: Row) -> int:
    """Where the user's words begin in ComfyUI's tokens of a template with a system message."""
    starts = [place for place, entry in enumerate(row) if entry[0] == _MESSAGE_START]
    return starts[1] + _MESSAGE_HEAD


def first_token(row: Row) -> int:
    """Where the text begins of which ComfyUI drops nothing."""
    return 0


def cut_rows(
    rows: Mapping[str, Sequence[Row]],
    text_length: int | None,
    images: int,
    start: Callable[[Row], int] = first_token,
) -> dict[str, list[Row]]:
    """`ClipSpec.read`: at most ``text_length`` tokens behind the dropped ones, images apart.

    Unset, nothing is cut, as in ComfyUI. The template's end counts. An image is never cut off, nor
    the token that closes it: those that the text encoder sees are found in the rows. The tokens
    that count begin at `start`: `first_token` or `second_message`.
    """

    def longest(row: Row) -> int | None:
        if text_length is None:
            return None
        places = [place for place, entry in enumerate(row) if isinstance(entry[0], dict)]
        wanted = start(row) + text_length + len(places)
        return max(wanted, places[-1] + 2) if places else wanted

    return {name: [row[: longest(row)] for row in each] for name, each in rows.items()}


def count_rows(rows: Mapping[str, Sequence[Row]], start: Callable[[Row], int] = first_token) -> int:
    """`ClipSpec.count`, with ``start`` as in `cut_rows`."""
    return max(len(row) - start(row) for each in rows.values() for row in each)


def real_tokens(text: Tensor, extra: Mapping[str, Any]) -> Conditioning:
    """`ClipSpec.conditioning`: ``text_embeddings`` `[L, D]`, without rows that ComfyUI masks."""
    mask = extra.get("attention_mask")
    # Only there when the caption itself has the end token, behind which nothing counts.
    return {"text_embeddings": text if mask is None else text[mask[0].bool().to(text.device)]}
