"""Text encoders that are trained with a denoiser: while they are, they are parts of the denoiser.

The denoiser then reads the text's tokens in place of what the text encoder made of them, so that
adapter, gradients, checkpoints, averages and files know one model and not two
(docs/text-encoder.md).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..adapter_files.names.text_encoder_names import TARGETS, TEXT_ENCODER, text_layers
from ..config import RunConfig
from ..config.adapter import ROTATIONS
from ..errors import AdapterError
from ..types import AdapterState, Conditioning
from ..weights.base_location import BaseLocation, folder_identity
from ..weights.diffusers_folder import check_part, read_json
from ..weights.library_errors import reading_part
from ..weights.loading import load_frozen

_SHARE = 0.1
"""Its learning rate over that of the denoiser, where none is set."""


@dataclass(frozen=True, slots=True)
class TrainableText:
    """What a denoiser reads tokens for, where its text encoder is trained.

    Only title, tokens and fingerprint are known of text encoders that a host has in memory.

    Attributes:
        title: For people.
        tokens: What the conditioning calls the tokens that it is made of.
        kind: Its class in transformers.
        config: The class of its configuration there.
        pooled: What the conditioning calls its output, of which the denoiser reads nothing else.
        length: How many tokens each text has.
        sizes: The published model's configuration, for a base without a folder of it.
        fingerprint: Names the weights, where they are in no folder of the base.
    """

    title: str
    tokens: str
    kind: str = ""
    config: str = ""
    pooled: str = ""
    length: int = 0
    sizes: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""


CLIP_L = TrainableText(
    title="CLIP-L",
    kind="CLIPTextModel",
    config="CLIPTextConfig",
    pooled="pooled_text",
    tokens="clip_tokens",
    length=77,
    # text_encoder/config.json of black-forest-labs/FLUX.1-dev.
    sizes={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "projection_dim": 768,
    },
)


class JoinedText(nn.Module):
    """CLIP-L as a part of a denoiser, by the names that its layers have in files.

    Args:
        model: transformers' ``CLIPTextModel``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # transformers 5 has left out the level that all files know.
        self.text_model = getattr(model, "text_model", model)

    def forward(self, tokens: Tensor) -> Tensor:
        """The pooled text `[B, P]` of tokens `[B, 77]`."""
        return self.text_model(input_ids=tokens).pooler_output


def joined_text(transformer: nn.Module) -> JoinedText | None:
    """The text encoder that is a part of a denoiser; None where none is."""
    found = getattr(transformer, TEXT_ENCODER, None)
    return found if isinstance(found, JoinedText) else None


def pooled_texts(
    text: TrainableText, transformer: nn.Module, conditionings: Sequence[Conditioning]
) -> Tensor:
    """What the text encoder makes of each text, `[B, P]`.

    It is computed where the text encoder is a part of the denoiser, and read where it is not.
    """
    model = joined_text(transformer)
    if model is None:
        return torch.stack([each[text.pooled] for each in conditionings])
    return model(torch.stack([each[text.tokens] for each in conditionings]))


def join_text(transformer: nn.Module, model: nn.Module) -> None:
    """Make a loaded text encoder a part of a denoiser, frozen as that is."""
    transformer.add_module(TEXT_ENCODER, JoinedText(model).requires_grad_(False).eval())


def load_text(text: TrainableText, location: BaseLocation, dtype: torch.dtype) -> nn.Module:
    """Load a base's text encoder onto the CPU; `BaseModelError` for absent or bad files."""
    check_part(location.encoders, TEXT_ENCODER, "base.encoders")
    return load_frozen(
        f"transformers.{text.kind}", location.encoders, TEXT_ENCODER, dtype=dtype, device="cpu"
    )


def empty_text(text: TrainableText, location: BaseLocation) -> nn.Module:
    """The text encoder of a base on the meta device; the published one where there is no folder."""
    place = location.encoders / TEXT_ENCODER
    path = place / "config.json"
    with reading_part(place):
        settings = read_json(path) if path.is_file() else dict(text.sizes)
        return make_text(text, settings, "meta")


def make_text(text: TrainableText, settings: Mapping[str, Any], device: str) -> nn.Module:
    """A text encoder without weights of a base, on a device."""
    library = importlib.import_module("transformers")
    config = getattr(library, text.config).from_dict(dict(settings))
    with torch.device(device):
        return getattr(library, text.kind)(config)


def filled_text(
    text: TrainableText, weights: Mapping[str, Tensor], heads: int, dtype: torch.dtype
) -> nn.Module:
    """A text encoder with copies of weights, on the CPU, whose attention has so many heads.

    The weights have the names of single files, below ``text_model``.

    Raises:
        BaseModelError: When weights are missing, or of other sizes.
    """
    own = {
        name.removeprefix("text_model."): each.detach().to("cpu", dtype, copy=True)
        for name, each in weights.items()
        if name.startswith("text_model.") and each.is_floating_point()
    }
    with reading_part(Path(text.title)):
        words, width = own["embeddings.token_embedding.weight"].shape
        layers = 1 + max(int(name.split(".")[2]) for name in own if name.startswith("encoder."))
        settings = {
            "vocab_size": words,
            "hidden_size": width,
            "intermediate_size": own["encoder.layers.0.mlp.fc1.weight"].shape[0],
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "projection_dim": width,
        }
        model = make_text(text, settings, "cpu").to(dtype)
        inner = getattr(model, "text_model", model)
        inner.load_state_dict(own, strict=True)
    return model.requires_grad_(False).eval()


def refuse_texts(state: AdapterState, location: BaseLocation) -> None:
    """Refuse an adapter that changes a text encoder on a base that has none in it.

    Raises:
        AdapterError: When it does.
    """
    texts = text_layers(state.layers)
    if texts and not location.reads_tokens:
        raise AdapterError(
            f"the adapter has {len(texts)} layers of a text encoder, and the base was opened with "
            "texts that are encoded without it",
            "a base that was opened for such an adapter",
            "Set training.text_encoder.train to true in the run file that the base is opened with.",
        )


def with_tokens(location: BaseLocation, text: TrainableText | None = None) -> BaseLocation:
    """The same place, of a denoiser that reads tokens; `text` has a fingerprint or a folder."""
    parts = [TEXT_ENCODER] if (location.encoders / TEXT_ENCODER).is_dir() else []
    marks = (text.fingerprint,) if text is not None and text.fingerprint else ()
    identity = folder_identity(location.encoders, parts, (location.identity, "tokens", *marks))
    return replace(location, reads_tokens=True, identity=identity)


def with_text(config: RunConfig) -> RunConfig:
    """Say of a run file's adapter and optimizer what its trained text encoder comes to.

    Its layers are adapted besides the denoiser's, with a rank and a learning rate of their own, by
    the patterns that people have for layers. Those of the run file come behind.
    """
    text, adapter, training = config.training.text_encoder, config.adapter, config.training
    if not text.train:
        return config
    optimizer = training.optimizer
    share = _SHARE if text.learning_rate is None else text.learning_rate / optimizer.learning_rate
    patterns: dict[str, Mapping[str, float]] = {
        "rank_pattern": {TARGETS: text.rank, **adapter.rank_pattern}
    }
    if adapter.alpha is not None and adapter.kind not in ROTATIONS:
        # An alpha is chosen for a rank.
        alpha = adapter.alpha * text.rank / adapter.rank
        patterns["alpha_pattern"] = {TARGETS: alpha, **adapter.alpha_pattern}
    rates = optimizer.model_copy(
        update={"rate_pattern": {TARGETS: share, **optimizer.rate_pattern}}
    )
    adapted = adapter.model_copy(update={"include": [*adapter.include, TARGETS], **patterns})
    return config.model_copy(
        update={"adapter": adapted, "training": training.model_copy(update={"optimizer": rates})}
    )
