"""Whether a CLIP has the text encoders that ComfyUI itself makes for a MODEL.

The text of another model's encoder may be as wide as the own one, and is then predicted with, into
noise. ComfyUI knows which text encoders it makes of a checkpoint that has these beside the model.
Where one of the CLIP is as wide as one of those and reads other tokens with another network, or it
finds none of the CLIP's to be the model's, the CLIP is another model's. Of some models it does not
know them, such as of those in FLUX's layout with another encoder: no CLIP that it makes for another
class of models is theirs.

Nothing is said of a model or a CLIP that ComfyUI's loaders have not made, and of the same encoder
with another template: KSampler reads that as it is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError
from ...trainer_core.printable import listed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .clip_and_vae_inputs import Clip
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
    own, connected = list(_encoders(made)), list(_encoders(model))
    if made is not None and not own and not any(hasattr(made, each.name) for each in connected):
        raise _refused(found, connected, "text encoders of its own")
    for width in {each.width for each in own} & {each.width for each in connected}:
        wanted = [each for each in own if each.width == width]
        there = [each for each in connected if each.width == width]
        if not any(one.is_same(other) for one in wanted for other in there):
            raise _refused(found, there, f"{_listed(wanted)}, which is {width} wide too")
    if not {each.width for each in own} & {each.width for each in connected}:
        _require_no_others(found, model, connected)


def _require_no_others(found: GraphModel, model: nn.Module, connected: Sequence[_Encoder]) -> None:
    """Refuse a CLIP that ComfyUI makes for other classes of models, and not for this one.

    Raises:
        InputError: When it is one.
    """
    from .comfy_model_management import model_classes

    config, weights, others = found.model.model_config, dict(model.named_parameters()), list[str]()
    for kind in model_classes():
        # Its settings are those of a file, which no text encoder depends on.
        made = _target(kind.__new__(kind), weights)
        if made is not None and _name(made.clip) == _name(type(model)):
            others.append(kind.__name__)
    if others and type(config) in model_classes() and type(config).__name__ not in others:
        raise _refused(found, connected, f"text encoders that are not those of {listed(others, 2)}")


def _name(kind: type) -> tuple[str, str]:
    """Of a class; some of ComfyUI's are made again at each call."""
    return kind.__module__, kind.__qualname__


def _refused(found: GraphModel, connected: Sequence[_Encoder], wanted: str) -> InputError:
    return InputError(
        f"a CLIP with {_listed(connected)} at the CLIP input, and {found.title}",
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

    words = {"device": torch.device("meta"), "dtype": torch.float16, "model_options": {}}
    try:
        target = _target(denoiser.model_config, dict(model.named_parameters()))
        return None if target is None else target.clip(**target.params, **words)
    except _UNKNOWN:
        return None


def _target(config: Any, weights: Mapping[str, Tensor]) -> Any:
    """What ComfyUI would make text encoders with, for a class of models and these weights."""
    try:
        prefix = config.text_encoder_key_prefix[0]
        state = {prefix + name: each for name, each in weights.items()}
        return config.clip_target(state_dict=state)
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
