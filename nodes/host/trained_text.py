"""CLIP-L and CLIP-G of the graph, trained beside the MODEL that reads their texts.

They stay where ComfyUI has them: their layers become parts of the denoiser for as long as a run
lasts, and the graph's own CLIP computes what it always computes, with its clip skip and the LoRAs
that it has. So what was trained is what Load LoRA puts on that CLIP.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...trainer_core.adapter_files.names.text_encoder_names import (
    KOHYA_PREFIX_ALONE,
    KOHYA_PREFIXES,
    TEXT_ENCODER,
    TEXT_ENCODER_2,
)
from ...trainer_core.errors import DatasetError, InputError
from ...trainer_core.filesystem.text_files import parse_json
from . import comfy_host
from .clip_and_vae_inputs import Clip, require_plain, weights_fingerprint

if TYPE_CHECKING:
    import contextlib

    import torch
    from torch import Tensor, nn

    from ...trainer_core.adapter_files.names.key_map import KeyMap
    from ...trainer_core.families.trainable_text import TrainableText
    from ...trainer_core.types import Conditioning

TOKENS = "clip_tokens"
"""Name of the tensor that holds a text's tokens: JSON as UTF-8, uint8."""

_STEM = "text_model.encoder.layers"
_LAYERS = f"transformer.{_STEM}"
_TITLES = {TEXT_ENCODER: "CLIP-L", TEXT_ENCODER_2: "CLIP-G"}


@dataclass(eq=False)
class TrainedGraphText:
    """A CLIP of Stable Diffusion 1.5 or XL, whose text encoders can be trained.

    Attributes:
        clip: The CLIP input's value.
        parts: Name of a text encoder in files to ComfyUI's name of it.
        prefixes: As `KeyMap.text_encoders`.
        whole: ComfyUI's names of those of which the denoiser reads the last layer's output, too;
            of the others it reads the one that clip skip says.
    """

    clip: Clip
    parts: Mapping[str, str]
    prefixes: Mapping[str, str]
    whole: frozenset[str] = frozenset()

    @cached_property
    def trainable(self) -> TrainableText:
        """What the core is told of it."""
        from ...trainer_core.families.trainable_text import TrainableText

        weights = weights_fingerprint(self.clip.cond_stage_model, self.clip.patcher)
        mark = f"{weights} {self.clip.layer_idx}"
        title = " and ".join(_TITLES[name] for name in self.parts)
        return TrainableText(title=title, tokens=TOKENS, fingerprint=mark)

    def with_names(self, key_map: KeyMap) -> KeyMap:
        """A denoiser's names, and those of the text encoders."""
        from ...trainer_core.adapter_files.names.key_map import with_text_encoders

        return with_text_encoders(key_map, self.prefixes)

    def tokens(self, caption: str) -> dict[str, Tensor]:
        """The tokens of a caption and their weights, of each text encoder, as one tensor.

        Raises:
            DatasetError: When the caption has an embedding, which is not a token.
        """
        import torch

        found: Mapping[str, Any] = self.clip.tokenize(caption)
        rows = {
            name: [[(each[0], each[1]) for each in row] for row in held]
            for name, held in found.items()
        }
        if not all(isinstance(n, int) for held in rows.values() for row in held for n, _ in row):
            raise DatasetError(
                f"the caption {caption[:60]!r} has an embedding, and the text encoder is trained",
                "words alone: an embedding is of a text encoder that stays as it is",
                "Take embedding:name out of the caption, or leave training.text_encoder.train out.",
            )
        with torch.inference_mode(False):
            text = json.dumps(rows).encode()
            return {TOKENS: torch.tensor(list(text), dtype=torch.uint8)}

    def has_tokens(self, text: Conditioning) -> bool:
        """Whether a text is there as its tokens."""
        return TOKENS in text

    def encode(self, text: Conditioning, device: torch.device) -> dict[str, Any]:
        """Encode what `tokens` gave as CLIPTextEncode does, while the text encoders are joined.

        The result is as that of `restored_conditioning`, on the device, with a graph where the text
        encoders have an adapter.
        """
        import torch

        rows = parse_json(bytes(text[TOKENS].cpu().tolist()).decode())
        ((attended, more),) = self._loaded.encode_from_tokens_scheduled(rows)
        whole = {"cross_attn": attended, **more}
        return {
            name: each.to(device) if isinstance(each, torch.Tensor) else each
            for name, each in whole.items()
        }

    @cached_property
    def _loaded(self) -> Any:
        """The CLIP, which does not ask ComfyUI to load it: that is done by then."""
        own: Any = copy.copy(self.clip)
        own.load_model = lambda tokens=None: own.patcher
        return own

    def join(self, denoiser: nn.Module, at_end: contextlib.ExitStack) -> None:
        """Load the text encoders, freeze them and make their layers parts of a ``diffusion_model``.

        The end takes them out again, and leaves them as they were.
        """
        import torch

        from . import comfy_model_management
        from .frozen_modules import frozen_modules
        from .unchanged_inputs import unchanged_inputs

        model: Any = self.clip.cond_stage_model
        with torch.inference_mode():
            comfy_model_management.load_model(self.clip.patcher, 0)
        at_end.enter_context(comfy_model_management.kept_loaded(self.clip.patcher))
        at_end.enter_context(frozen_modules(model))
        parts = {name: f"{own}.{_LAYERS}" for name, own in self.parts.items()}
        at_end.enter_context(unchanged_inputs(model, list(parts.values())))
        at_end.callback(model.reset_clip_options)
        for name, path in parts.items():
            denoiser.add_module(name, _below(_STEM, self._used_layers(name, path)))
            at_end.callback(delattr, denoiser, name)

    def _used_layers(self, name: str, path: str) -> nn.ModuleList:
        """The layers whose output the denoiser reads: those behind clip skip have no gradient."""
        from torch import nn

        model: Any = self.clip.cond_stage_model
        layers, encoder = list(model.get_submodule(path)), getattr(model, self.parts[name])
        model.reset_clip_options()
        if self.clip.layer_idx is not None:
            model.set_clip_options({"layer": self.clip.layer_idx})
        if name in self.whole or encoder.layer != "hidden":
            return nn.ModuleList(layers)
        return nn.ModuleList(layers[: range(len(layers))[encoder.layer_idx] + 1])


def _below(path: str, module: nn.Module) -> nn.Module:
    """A module that has another one at a path."""
    from torch import nn

    for name in reversed(path.split(".")):
        holder = nn.Module()
        holder.add_module(name, module)
        module = holder
    return module


def graph_text(clip: Any) -> TrainedGraphText | None:
    """The text encoders of a CLIP that can be trained; None where they cannot, and without one."""
    if clip is None:
        return None
    model = clip.cond_stage_model
    own = {name for name, _ in model.named_children()}
    both = {TEXT_ENCODER: "clip_l", TEXT_ENCODER_2: "clip_g"}
    if _is(model, "comfy.sdxl_clip", "SDXLClipModel") and own == set(both.values()):
        # The pooled text is that of CLIP-G's last layer.
        return TrainedGraphText(clip, both, KOHYA_PREFIXES, frozenset({TEXT_ENCODER_2}))
    if _is(model, "comfy.sd1_clip", "SD1ClipModel") and own == {"clip_l"}:
        return TrainedGraphText(clip, {TEXT_ENCODER: "clip_l"}, {TEXT_ENCODER: KOHYA_PREFIX_ALONE})
    return None


def _is(model: Any, module: str, name: str) -> bool:
    return isinstance(model, getattr(comfy_host.comfyui_module(module), name))


def require_trainable_text(clip: Any) -> None:
    """Refuse a CLIP whose text encoders cannot be trained beside a MODEL.

    Raises:
        InputError: When there is none, or it is not Stable Diffusion 1.5's or XL's.
    """
    if graph_text(clip) is not None:
        require_plain(clip.patcher, "CLIP")
        return
    found = "no CLIP"
    if clip is not None:
        model = clip.cond_stage_model
        parts = ", ".join(sorted(name for name, _ in model.named_children()))
        found = f"a CLIP made of {parts} ({type(model).__name__})"
    raise InputError(
        f"{found} at the CLIP input, and train_text_encoder is on",
        "the CLIP of Stable Diffusion 1.5 (CLIP-L) or of SDXL (CLIP-L and CLIP-G)",
        "Connect it, or switch train_text_encoder off. Some families of Load Training Base, in the "
        "place of Base From Model, train CLIP-L of other models.",
    )
