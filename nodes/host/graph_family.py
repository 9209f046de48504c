"""The `Family` of a MODEL of the graph, made when a run begins."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .audio_vae import AudioVae, require_audio_vae
from .clip_fits_model import require_own_text
from .control_clips import control_rule
from .family_encoders import seeing_text
from .graph_model import GraphModel
from .graph_predict import GraphPredict, Silence
from .model_encoders import PlainEncoders
from .start_frames import EndpointEncoder
from .trainable_model import borrowed_denoiser, uncompiled
from .trained_text import graph_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ...trainer_core.families.family import Family
    from ...trainer_core.families.graph_model_denoiser import LentDenoiser, OtherExpert
    from ...trainer_core.inference.encoder_source import MakeSource
    from ...trainer_core.types import Conditioning
    from ...trainer_core.weights.base_location import BaseLocation

Work = tuple[int, int, int, int]
"""Images of a pass, their side in pixels, the adapter's rank, and frames of the longest clip."""

_PROBED_LEVEL = 0.6
_EDIT = "edit_plus"
"""The variant of a model that reads any number of reference images."""


def graph_family(
    model: Any,
    clip: Any = None,
    work: tuple[int, int, int, int] | None = None,
    other: OtherExpert | None = None,
    *,
    audio: Any = None,
    rate: float | None = None,
) -> Family:
    """Make the family of a MODEL.

    Nothing is loaded and nothing is changed: `Family.lent` borrows the model when a run asks, and
    gives it back at the run's end.

    Args:
        clip: The CLIP whose text encoders may be trained; None for none. One that is another
            model's than those that can be trained is as none.
        work: What a step is, as `GraphModel.room` takes it: how much memory is left free for it.
        other: The expert that previews have for the other levels of noise; None for none.
        audio: The VAE of clips' sound, where that is trained; None for none.
        rate: Frames per second of previews; None for the model's own.

    Raises:
        BaseModelError: When it cannot be trained.
        InputError: When it carries hooks or injections; when a VAE of sound does not fit it.
    """
    with uncompiled(model) as plain:
        found = GraphModel(plain)
        require_audio_vae(audio, found, rate)
        heard = None if audio is None else AudioVae(audio, found.sound_scale)
        family = _family(found, model, clip, work=work, other=other, heard=heard)
    if heard is None or family.lent is None or family.clips is None:
        return family
    sound = heard.lent(rate or family.clips.rate, always=found.needs_sound)
    return replace(
        family,
        lent=replace(family.lent, sound=sound),
        layers=replace(family.layers, unused=_nothing_unused),
    )


def _nothing_unused(transformer: nn.Module) -> tuple[str, ...]:
    """`LayerSpec.unused` of a model that is trained with sound."""
    del transformer
    return ()


def other_expert(model: Any, *, begins: bool, switch_at: float) -> OtherExpert:
    """A second MODEL that previews are sampled with, as `OtherExpert` describes it."""
    from ...trainer_core.families.graph_model_denoiser import OtherExpert

    found = GraphModel(model)
    predict = GraphPredict(found.patcher, found.space.dimensions, found.straight, found.guided)

    def open_denoiser(at_end: contextlib.ExitStack) -> nn.Module:
        return at_end.enter_context(borrowed_denoiser(found.patcher)).denoiser

    def border(sigmas: Tensor) -> Tensor:
        return sigmas[round((len(sigmas) - 1) * switch_at)]

    return OtherExpert(predict, open_denoiser, begins, border)


def _family(
    found: GraphModel,
    model: Any,
    clip: Any,
    work: tuple[int, int, int, int] | None,
    other: OtherExpert | None,
    heard: AudioVae | None,
) -> Family:
    from ...trainer_core.diffusion.sigma import ShiftSettings
    from ...trainer_core.families import graph_model_layers
    from ...trainer_core.families.graph_model_family import lent_family
    from .checkpointed_forward import enable_checkpointing

    denoiser, sampling = found.denoiser, ShiftSettings(shift=found.shift)
    trained = ShiftSettings(shift=found.trained_shift)
    text = graph_text(clip)
    silence = None
    if found.needs_sound and heard is not None and found.clips is not None:
        silence = Silence(found.clips, functools.cache(heard.silence))
    predict = GraphPredict(
        found.patcher,
        found.space.dimensions,
        found.straight,
        guided=found.guided,
        text=text,
        silence=silence,
    )
    names = graph_model_layers.key_map(denoiser)
    header = graph_model_layers.header_names(denoiser, found.kind)
    lists = graph_model_layers.block_lists(denoiser)
    references = (_EDIT,) if found.takes_references else ()
    steered = ("edit",) if found.steered else ()
    room = 0 if work is None else found.room(*work)
    lent = replace(_given(found, model, lists, room=room, predict=predict), other=other)
    variants = ("generate", *references, *steered)
    family = lent_family(
        lent, predict, names if text is None else text.with_names(names), found.size_multiple
    )
    return replace(
        family,
        variants=variants,
        text=replace(
            family.text,
            shown=frozenset(references),  # by a CLIP that sees them
            trainable=None if text is None else text.trainable,
        ),
        latents=replace(family.latents, patch=found.patch),
        layers=replace(
            family.layers,
            repeated_blocks=lists,
            presets=graph_model_layers.native_presets(denoiser),
            convolutional_presets=graph_model_layers.convolutional_presets(denoiser),
            shared_inputs=graph_model_layers.shared_inputs(denoiser),
            unused=graph_model_layers.unused,
            enable_checkpointing=lambda transformer, call=None: enable_checkpointing(
                transformer, lists, call
            ),
        ),
        files=replace(family.files, header_names=dict.fromkeys(variants, header)),
        prediction=replace(
            family.prediction,
            parameterization=found.parameterization,
            levels=found.levels,
            shift=lambda location, steps: sampling,
            trained_shift=lambda location: trained,
            takes_guidance=lambda transformer: found.guided,
        ),
        distilled=lambda location: found.distilled,
    )


def _given(
    found: GraphModel, model: Any, lists: tuple[str, ...], room: int, predict: GraphPredict
) -> LentDenoiser:
    """The MODEL as the core borrows it."""
    from ...trainer_core.families.graph_model_denoiser import LentDenoiser

    def open_denoiser(
        dtype: torch.dtype, device: torch.device, at_end: contextlib.ExitStack
    ) -> nn.Module:
        del device  # ComfyUI's own, where the model's loader puts it
        at_end.enter_context(predict.proof.backward())
        at_end.enter_context(uncompiled(model))
        borrowed = borrowed_denoiser(found.patcher, lists, dtype, room)
        return at_end.enter_context(borrowed).denoiser

    return LentDenoiser(
        title=found.title,
        fingerprint=found.fingerprint,
        channels=found.space.channels,
        pixels=found.space.pixels,
        open=open_denoiser,
        sigmas=found.sigmas,
        clips=found.clips,
        starts=found.starts,
        steered=found.steered,
    )


def encoders_of(
    model: Any,
    clip: Any,
    vae: Any,
    on_close: Callable[[], None] | None = None,
    *,
    vision: Any = None,
    probed: int = 0,
    name: str = "",
    rate: float | None = None,
    audio: Any = None,
) -> MakeSource:
    """What encodes and decodes for a MODEL with the graph's CLIP and VAE.

    Args:
        vision: The CLIP_VISION input's value; None where nothing is connected.
        on_close: As `PlainEncoders`.
        probed: Side in pixels of an image that the model has to predict with a text of the CLIP
            before all else is encoded; 0 for none.
        name: What the cache knows the model by; empty for its title.
        rate: Frames per second of clips; None for the model's own.
        audio: The audio VAE input's value; None where nothing is connected.

    Raises:
        InputError: From what it gives, when the CLIP that is to be probed is another model's.
    """
    found = GraphModel(model)

    def make(family: Family, location: BaseLocation) -> PlainEncoders:
        if probed and clip is not None:
            require_own_text(found, clip)
        text = graph_text(clip) if location.reads_tokens else None
        edits = found.takes_references and location.variant != "generate"
        sight = seeing_text(clip, found.title) if edits else None
        probe = functools.partial(_predict_once, found, family, probed) if probed else None
        endpoints = None if found.starts is None else EndpointEncoder(found.model, vision)
        return PlainEncoders(
            name or found.title,
            found.space,
            clip,
            vae,
            on_close=on_close,
            trained=text,
            sight=sight,
            probe=probe,
            clips=found.clips,
            endpoints=endpoints,
            control=control_rule(found.model),
            text_rate=rate if found.text_rate else None,
            audio=None if audio is None else AudioVae(audio, found.sound_scale),
        )

    return make


def _predict_once(found: GraphModel, family: Family, side: int, text: Conditioning) -> None:
    """Predict with a text: another model's CLIP is known before a dataset is encoded with it.

    Raises:
        BaseModelError: When the model cannot.
    """
    import torch

    device, lent = found.patcher.load_device, family.lent
    assert lent is not None
    with contextlib.ExitStack() as at_end, torch.no_grad():
        denoiser = lent.open(found.model.get_dtype_inference(), device, at_end)
        step = family.latents.size_multiple
        side = max(step, side // step * step) // lent.pixels
        noisy = torch.zeros(1, lent.channels, side, side, device=device)
        level = torch.full((1,), _PROBED_LEVEL, device=device)
        held = {name: each.to(device) for name, each in text.items()}
        family.prediction.predict(denoiser, noisy, level, [held], [], 1.0)
