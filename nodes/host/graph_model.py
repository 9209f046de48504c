"""`GraphModel`: what a MODEL of the graph tells about itself: latents, noise levels, clips."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ...trainer_core.families.base_names import distilled_word, is_turned_round
from . import comfy_host, reference_images
from .clip_and_vae_inputs import options_fingerprint, weights_fingerprint
from .control_clips import control_rule
from .model_encoders import LatentSpace
from .refused_models import refused, require_trainable, require_trainable_kind
from .start_frames import start_frames

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...trainer_core.diffusion.discrete_levels import NoiseLevels
    from ...trainer_core.diffusion.parameterization import Parameterization
    from ...trainer_core.types import FrameGrid, StartFrames

_VIDEO = 3
_SCHEDULER = "simple"
"""Of the samples that a run makes, with the sampler euler."""

_OF_A_STEP = 4
"""A training step's activations over those of a sampler's step, with gradient checkpointing: 3 of
FLUX.1 and 3.8 of Wan's 14B by simulation (`benchmarks.clip_memory`)."""
_OF_A_FACTOR = 16
"""Bytes of a number of the adapter: itself, its gradient and AdamW's two moments in float32."""

_TRAINED_SHIFTS = {"Anima": 1.0, "ZImage": 2.0}
"""ComfyUI's configurations to the shift that they are trained at.

Source: sd-scripts 48d368fa, docs/anima_train_network.md; musubi-tuner 30c658c, docs/zimage.md.
"""

_MOST_TRAINED_SHIFT = 3.0
"""Of any other flow. Trainers use 1 to 3.2; a MODEL's own is for generating, and may be 8."""

_FRAME_RATES = {
    **dict.fromkeys(("WAN21", "CosmosPredict2"), 16.0),
    **dict.fromkeys(("WAN22", "HunyuanVideo", "HunyuanVideo15", "Kandinsky5"), 24.0),
    "LTXV": 25.0,
    "LTXAV": 25.0,
    "GenmoMochi": 30.0,
    "CosmosVideo": 24.0,
    "MiniMaxH3": 24.0,
}
"""ComfyUI's classes of models of videos to the frames per second that they were trained at.

Source: the pages and pipelines of the models; ComfyUI's example workflows save at the same rates.
"""

_CYCLES = {"MiniMaxH3": 5}
"""ComfyUI's classes to `FrameGrid.cycle`. Source: ComfyUI 0.33, ``comfy/sd.py``."""

_GUIDED_BY_WEIGHTS = frozenset({"MiniMaxH3"})
"""Those whose guidance was distilled into their weights, so that they are sampled without.

Source: DiffSynth-Studio's page on MiniMax-H3, and its issue #1585: trained as it is, it loses that.
"""

_READ_RATE = frozenset({"LTXV", "LTXAV"})
"""Those that read the frames per second beside a text, as LTXVConditioning writes it."""

_CAST = "manual_cast_dtype"
"""ComfyUI's name of what a model computes in where its weights are kept in something else."""
_GUIDED = ("guidance_in.", "guidance_embed")


@dataclass(eq=False)
class GraphModel:
    """A MODEL of the graph that can be trained.

    Attributes:
        patcher: ComfyUI's ModelPatcher, as it came over the link.

    Raises:
        BaseModelError: When it cannot be trained; the error names the kind of model.
    """

    patcher: Any

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        require_trainable(self.patcher)
        require_trainable_kind(self.patcher)
        _ = self.parameterization

    @property
    def model(self) -> Any:
        """ComfyUI's ``BaseModel``."""
        return self.patcher.model

    @property
    def denoiser(self) -> nn.Module:
        """ComfyUI's ``diffusion_model``."""
        return self.model.diffusion_model

    @property
    def kind(self) -> str:
        """ComfyUI's name of the model's class."""
        return type(self.model).__name__

    @property
    def config(self) -> str:
        """ComfyUI's name of its configuration: Wan for texts and for images share a class."""
        return type(getattr(self.model, "model_config", None)).__name__

    @cached_property
    def title(self) -> str:
        """What people call it: its file where the loader has told it, and its class."""
        made_by = getattr(self.patcher, "cached_patcher_init", None)
        paths = made_by[1] if made_by else ()
        names = [PurePath(each).stem for each in paths if isinstance(each, str) and each]
        return f"{names[0]} ({self.kind})" if names else self.kind

    @cached_property
    def space(self) -> LatentSpace:
        """Its latents."""
        found = self.patcher.get_model_object("latent_format")
        pixels = int(found.spacial_downscale_ratio)
        channels = self._empty(1)[0].shape[1]
        return LatentSpace(found, channels, found.latent_dimensions, pixels)

    def _empty(self, frames: int) -> Sequence[Tensor]:
        """ComfyUI's empty latents of a clip's frames, and of its sound where they need one."""
        import torch

        found = self.patcher.get_model_object("latent_format")
        deep = (frames,) * (found.latent_dimensions - 2)
        latents = torch.zeros(1, int(found.latent_channels), *deep, 1, 1)
        fix = getattr(found, "fix_empty_latent", None)
        whole = latents if fix is None else fix(latents)
        return whole.unbind() if whole.is_nested else (whole,)

    @cached_property
    def needs_sound(self) -> bool:
        """Whether it predicts nothing without latents of sound."""
        return len(self._empty(1)) > 1

    @property
    def sound_scale(self) -> float:
        """What ComfyUI's sampler multiplies latents of sound by, where their shift is another."""
        return float(getattr(self.sampling, "audio_scale", 1.0))

    @cached_property
    def clips(self) -> FrameGrid | None:
        """Lengths of the clips that it generates; None of a model of images."""
        from ...trainer_core.types import FrameGrid

        rates = [_FRAME_RATES[each] for each in classes_of(self.model) if each in _FRAME_RATES]
        every = int(getattr(self.space.format, "temporal_downscale_ratio", 1))
        if not rates or self.space.dimensions != _VIDEO or every == 1:
            return None
        return FrameGrid(every, rates[0], _CYCLES.get(self.kind, 0))

    @property
    def text_rate(self) -> bool:
        """Whether it reads how many frames of a clip are a second."""
        return not _READ_RATE.isdisjoint(classes_of(self.model))

    @property
    def starts(self) -> StartFrames | None:
        """What it may be given of a clip; None where it takes no frame."""
        return start_frames(self.model)

    @cached_property
    def fingerprint(self) -> str:
        """Names its weights with their patches, and its noise levels."""
        weights = weights_fingerprint(self.model, self.patcher)
        weights = f"{weights} {options_fingerprint(self.patcher)}"
        facts = f"{weights} {self.kind} {type(self.sampling).__mro__} {self._sampling_facts()}"
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    @property
    def sampling(self) -> Any:
        """ComfyUI's model of the noise levels, as the graph has set it."""
        return self.patcher.get_model_object("model_sampling")

    def _sampling_facts(self) -> Mapping[str, Any]:
        known = vars(self.sampling).items()
        plain = {k: v for k, v in known if isinstance(v, bool | int | float | str)}
        return {**plain, "last": float(self.sampling.sigma_max)}

    @cached_property
    def parameterization(self) -> Parameterization:
        """What its raw output stands for; `BaseModelError` where that has no loss here."""
        from ...trainer_core.diffusion import parameterization as known

        kinds, sampling = comfy_host.comfyui_module("comfy.model_sampling"), self.sampling
        untrained = (kinds.X0, kinds.IMG_TO_IMG, kinds.IMG_TO_IMG_FLOW, kinds.V_PREDICTION_DDPM)
        if isinstance(sampling, untrained):
            kind = next(each for each in untrained if isinstance(sampling, each))
            raise refused(self.model, f"is sampled as {kind.__name__}")
        if "LCM" in classes_of(sampling):
            remedy = "Connect the MODEL from before that node and before the LoRA of LCM."
            raise refused(self.model, "is sampled as LCM, distilled to few steps", remedy)
        if isinstance(sampling, kinds.EDM):
            return known.edm(float(sampling.sigma_data))
        if isinstance(sampling, kinds.V_PREDICTION):
            return known.v_prediction(float(sampling.sigma_data))
        if isinstance(sampling, kinds.EPS):
            return known.EPS
        if isinstance(sampling, kinds.COSMOS_RFLOW):
            return known.FLOW
        if isinstance(sampling, kinds.CONST):
            scale = float(getattr(sampling, "noise_scale", 1.0))
            return known.flow(scale, self.sound_scale)
        raise refused(self.model, "is sampled in a way that is not known here")

    @property
    def straight(self) -> bool:
        """Whether ComfyUI's sigma is the share of noise itself."""
        kinds = comfy_host.comfyui_module("comfy.model_sampling")
        return isinstance(self.sampling, kinds.CONST)

    @property
    def levels(self) -> NoiseLevels | None:
        """The levels that it was trained at; None for one that was trained at all of them."""
        from ...trainer_core.diffusion.discrete_levels import NoiseLevels

        if self.parameterization.name == "flow":
            return None
        return NoiseLevels.from_k(self.sampling.sigmas.tolist())

    @property
    def shift(self) -> float:
        """The factor that moves a flow's noise levels, as `diffusion.sigma.shift_sigma` takes it.

        It is read off where the shift of one half shows: s' = a s / (1 + (a - 1) s).
        """
        import torch

        if not self.straight:
            return 1.0
        scale = float(getattr(self.sampling, "multiplier", 1.0))
        half = float(self.sampling.sigma(torch.tensor(0.5 * scale)))
        return half / (1.0 - half)

    @property
    def trained_shift(self) -> float:
        """The shift of the noise levels that are trained, whatever a node set for sampling."""
        for name in classes_of(getattr(self.model, "model_config", None)):
            if name in _TRAINED_SHIFTS:
                return _TRAINED_SHIFTS[name]
        return min(self.shift, _MOST_TRAINED_SHIFT)

    def sigmas(self, steps: int) -> Tensor:
        """The noise levels of a generation `[steps + 1]` as shares of noise, float32."""
        import torch

        calculate = comfy_host.comfyui_module("comfy.samplers").calculate_sigmas
        with torch.inference_mode(False):
            found = calculate(self.sampling, _SCHEDULER, steps).double().cpu()
            shares = found if self.straight else found / (1.0 + found)
            return shares.to(torch.float32).clone()

    @cached_property
    def guided(self) -> bool:
        """Whether it is conditioned on a guidance value."""
        names = (name for name, _ in self.denoiser.named_parameters())
        return any(mark in name for name in names for mark in _GUIDED)

    @property
    def takes_references(self) -> bool:
        """Whether it reads the latents of reference images."""
        return not self.steered and reference_images.takes_references(self.model)

    @property
    def steered(self) -> bool:
        """Whether a control clip steers what it generates."""
        return control_rule(self.model) is not None

    @property
    def patch(self) -> int:
        """Latents along a side of an image token; 1 of a UNet."""
        side = getattr(self.denoiser, "patch_size", 1 if self.halvings else 2)
        side = side[-1] if isinstance(side, list | tuple) else side
        return side if isinstance(side, int) and side > 0 else 2

    @property
    def halvings(self) -> int:
        """How often a UNet halves its latents; 0 of any other model."""
        levels = getattr(self.denoiser, "num_res_blocks", None)
        return len(levels) - 1 if isinstance(levels, list | tuple) else 0

    @property
    def size_multiple(self) -> int:
        """Pixels of which the sides of trained images are multiples."""
        return 2**self.halvings * self.patch * self.space.pixels

    def room(self, images: int, side: int, rank: int, frames: int = 1) -> int:
        """Bytes of the device that a step may need beside the model, for ComfyUI to leave free.

        A guess, as ComfyUI's own of a sampler's step is, from which it is made; no GPU has measured
        it. What is left free is ComfyUI's way to decide how much of a model it loads. `side` is
        that of an image, in pixels.
        """
        small, deep = max(1, side // self.space.pixels), (1,) * (self.space.dimensions - 2)
        if self.clips is not None:
            deep = (self.clips.latent_frames(frames),)
        forward = self.patcher.memory_required((images, self.space.channels, *deep, small, small))
        sizes = (
            getattr(each, "in_features", 0) + getattr(each, "out_features", 0)
            for each in self.denoiser.modules()
        )
        return int(_OF_A_STEP * forward) + _OF_A_FACTOR * rank * sum(sizes)

    def precision(self, wanted: str) -> str:
        """``bf16`` or ``fp32``: what a run computes in, by ``training.precision``.

        Of ``auto`` it is the model's own, and bf16 for fp16, in which gradients underflow.
        """
        import torch

        if wanted != "auto":
            return wanted
        own = self.patcher.get_model_object(_CAST) or self.model.get_dtype()
        if own in {torch.float32, torch.float64}:
            return "fp32"
        fits = comfy_host.comfyui_module("comfy.model_management").should_use_bf16(
            comfy_host.device()
        )
        return "bf16" if fits or own == torch.bfloat16 else "fp32"

    @property
    def traits(self) -> frozenset[str]:
        """What its presets depend on, as `families.presets.plan_preset` takes it."""
        return traits_of(
            getattr(self.model, "model_config", None),
            self.parameterization.name,
            guided=self.guided,
        )

    @property
    def distilled(self) -> str:
        """`Family.distilled`, by class or name; a LoRA on it may be its training adapter."""
        name = self.title.casefold()
        word = distilled_word(name)
        if self.patcher.patches:
            return ""
        remedy = (
            "put its training adapter on it by Load LoRA before Base From Model, and generate "
            "without that."
        )
        if word:
            return (
                f"Its file's name says {word!r}. Connect the model that it was made from; most "
                f"adapters work on both. Or {remedy}"
            )
        if self.kind in _GUIDED_BY_WEIGHTS and not is_turned_round(name):
            return f"Its guidance is in its weights: {remedy}"
        return ""


def classes_of(made: object) -> tuple[str, ...]:
    """The names of the class of ComfyUI's object, such as a configuration, and of its bases."""
    return tuple(each.__name__ for each in type(made).__mro__[:-1])


def traits_of(config: object, parameterization: str, *, guided: bool) -> frozenset[str]:
    """What presets of a model depend on, by the layers of ``config/presets/graph_model.yaml``.

    `parameterization` is ``flow``, ``eps``, ``v`` or ``edm``; `guided` says whether the model reads
    its guidance as a number.
    """
    discrete = set() if parameterization == "flow" else {"discrete"}
    return frozenset(
        {*classes_of(config), parameterization} | discrete | ({"guided"} if guided else set())
    )
