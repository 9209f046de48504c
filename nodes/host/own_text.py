"""Whether a CLIP has the text encoders that ComfyUI itself makes for a MODEL.

The text of another model's encoder may be as wide as the own one, and is then predicted with, into
noise. ComfyUI knows which text encoders it makes of a checkpoint that has these beside the model.
Where one of the CLIP is as wide as one of those and reads other tokens with another network, or it
finds none of the CLIP's to be the model's, the CLIP is another model's.

Nothing is said of a model or a CLIP that ComfyUI's loaders have not made, of another width, which
the model itself refuses, and of the same encoder with another template: KSampler reads that as it
is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from .graph_inputs import Clip
    from .graph_model import GraphModel

_UNKNOWN = (AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""What a class of models raises that was not made for this CLIP, or has no text encoder."""


@dataclass(frozen=True, slots=True)
class _Encoder:
    """One text encoder: how many tokens it knows, how wide they are, and its network."""

    name: str
    tokens: int
    width: int
    network: frozenset[str]

    def is_same(self, other: _Encoder) -> bool:
        """Whether both read the same tokens, or more of them with the same network."""
        return self.tokens == other.tokens or self.network == other.network


def require_own_text(found: GraphModel, clip: Clip) -> None:
    """Refuse another model's CLIP whose texts are as wide as the model's own.

    Nothing is loaded: ComfyUI's encoders are made without weights.

    Raises:
        InputError: When it is one.
    """
    model = clip.cond_stage_model
    if not type(model).__module__.startswith("comfy."):
        return
    made = _own_text(found.model, model)
    own, given = list(_encoders(made)), list(_encoders(model))
    if made is not None and not own and not any(hasattr(made, each.name) for each in given):
        raise _refused(found, given, "text encoders of its own")
    for width in {each.width for each in own} & {each.width for each in given}:
        wanted = [each for each in own if each.width == width]
        there = [each for each in given if each.width == width]
        if not any(one.is_same(other) for one in wanted for other in there):
            raise _refused(found, there, f"{_listed(wanted)}, which is {width} wide too")


def _refused(found: GraphModel, given: Sequence[_Encoder], wanted: str) -> InputError:
    return InputError(
        f"a CLIP with {_listed(given)} at the CLIP input, and {found.title}",
        f"the CLIP that the model is sampled with, with {wanted}",
        "Connect that CLIP where captions are encoded.",
    )


def _listed(encoders: Sequence[_Encoder]) -> str:
    return ", ".join(f"{each.name} of {each.tokens} tokens" for each in encoders)


def _own_text(denoiser: Any, model: nn.Module) -> nn.Module | None:
    """What ComfyUI makes of a checkpoint with this model and these text encoders; None if unknown.

    Source: ComfyUI 0.33, ``comfy/sd.py`` (`load_state_dict_guess_config`).
    """
    import torch

    try:
        config = denoiser.model_config
        prefix = config.text_encoder_key_prefix[0]
        state = {prefix + name: each for name, each in model.named_parameters()}
        target = config.clip_target(state_dict=state)
        words = {"device": torch.device("meta"), "dtype": torch.float16, "model_options": {}}
        return target.clip(**target.params, **words)
    except _UNKNOWN:
        return None


def _encoders(model: nn.Module | None) -> Iterator[_Encoder]:
    from torch import nn

    tables: set[int] = set()
    for path, module in () if model is None else model.named_modules():
        find = getattr(module, "get_input_embeddings", None)
        table = find() if callable(find) else None
        if isinstance(table, nn.Embedding) and id(table) not in tables:
            tables.add(id(table))
            network = frozenset(name for name, _ in module.named_parameters())
            name = path.split(".")[0]
            yield _Encoder(name, table.num_embeddings, table.embedding_dim, network)
