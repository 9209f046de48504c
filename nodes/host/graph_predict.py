"""A prediction of a graph's MODEL, built as KSampler builds it, of the trainer's own latents.

Conditioning goes through the model's own ``extra_conds``, samples with alike conditioning share a
pass as ComfyUI puts them together, and the pass is the model's own ``apply_model``. So what is
trained is what is sampled.

Source: ComfyUI 0.33, ``comfy/samplers.py`` (`encode_model_conds`, `calc_cond_batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import comfy_host, comfy_model_management
from .clip_and_vae_inputs import ATTENTION
from .conditioning import restored_conditioning
from .control_clips import control_rule
from .prediction_proof import PredictionProof
from .reference_images import REFERENCES, UNFIT, ReferenceProof
from .start_frames import EndpointInputs, endpoint_inputs
from .unchanged_inputs import followed_patches

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...trainer_core.types import Conditioning, FrameGrid
    from .trained_text import TrainedGraphText

_VIDEO, _MASK = 3, "attention_mask"

_ALONE = "minimax_payload"
"""What ComfyUI gives a network that takes one sample a pass."""


@dataclass(frozen=True)
class _Clean:
    """Latents that are given to the model as they are, as ``KSamplerX0Inpaint`` lays them in.

    Attributes:
        image: `[1, C, f, h, w]`, normalised; None where all latents are noise.
        mask: Of the same shape, 1 where they are noise.
        by_sampler: Whether the sampler lays them over the noise; else the network does.
    """

    image: Tensor | None = None
    mask: Tensor | None = None
    by_sampler: bool = False

    @classmethod
    def of(cls, model: Any, inputs: EndpointInputs, noise: Tensor) -> _Clean:
        """The latents that a model is given."""
        if inputs.samples is None:
            return cls()
        helpers = comfy_host.comfyui_module("comfy.sampler_helpers")
        mask = helpers.prepare_mask(inputs.noise_mask, noise.shape, noise.device)
        return cls(model.process_latent_in(inputs.samples), mask, not inputs.in_network)

    def laid_over(self, model: Any, noise: Tensor, level: Tensor) -> Tensor:
        """What the model sees in the place of `[1, C, f, h, w]` at ComfyUI's sigma `[1]`."""
        if self.image is None or self.mask is None or not self.by_sampler:
            return noise
        image = model.scale_latent_inpaint(
            x=noise, sigma=level, noise=noise, latent_image=self.image, denoise_mask=self.mask
        )
        return noise * self.mask + image * (1.0 - self.mask)

    def kept(self, output: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        """An output `[C, f, h, w]` whose denoised latents have the clean ones in their place.

        It is of a flow: the denoised latents are ``noisy - sigma * output``. No gradient goes
        through the clean part.
        """
        if self.image is None or self.mask is None:
            return output
        straight = (noisy - self.image[0]) / sigma
        return output * self.mask[0] + straight * (1.0 - self.mask[0])


@dataclass(frozen=True)
class Silence:
    """The sound of a clip that has none, for a model that makes no clip without.

    Attributes:
        clips: Lengths of clips.
        encoded: Seconds to latents `[c, t, b]`.
    """

    clips: FrameGrid
    encoded: Callable[[float], Tensor]

    def noisy(self, clips: Tensor, sigma: Tensor) -> Tensor:
        """Latents `[B, c, t, b]` beside those of clips `[B, C, f, h, w]` at noise levels `[B]`.

        The noise comes from the level alone: it is the same when a prediction is made again.
        """
        import torch

        from ...trainer_core.counters import counter_seed

        clean = self.encoded(self.clips.frames_of(clips.shape[2]) / self.clips.rate)
        rows = []
        for level in sigma.tolist():
            source = torch.Generator().manual_seed(counter_seed(0, "silence", repr(level)))
            noise = torch.randn(clean.shape, generator=source)
            rows.append((1.0 - level) * clean + level * noise)
        return torch.stack(rows).to(clips.device)


@dataclass(frozen=True)
class GraphPredict:
    """`Predict` of a family whose denoiser is a graph's MODEL.

    Attributes:
        patcher: ComfyUI's ModelPatcher, whose model is loaded and gives its raw output.
        dimensions: Axes that a latent image has besides its channels: 3 of a model of videos, to
            which an image is one frame.
        straight: Whether ComfyUI's sigma is the trainer's. Else it is sigma / (1 - sigma), and the
            latents are larger by as much: those of `k-diffusion`, an image plus sigma times noise.
        guided: Whether the model is conditioned on a guidance value.
        text: The CLIP that reads a text's tokens, where one is trained.
        silence: What stands for sound where latents have none; None where a model needs none.
        references: Knows whether the model has been seen to read reference images.
        proof: Knows whether a run trains on what is sampled.
    """

    patcher: Any
    dimensions: int
    straight: bool
    guided: bool
    text: TrainedGraphText | None = None
    silence: Silence | None = None
    references: ReferenceProof = field(default_factory=ReferenceProof)
    proof: PredictionProof = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is proven yet."""
        object.__setattr__(self, "proof", PredictionProof(self.patcher))

    def __call__(
        self,
        transformer: nn.Module,
        noisy: Tensor,
        sigma: Tensor,
        conditionings: Sequence[Conditioning],
        controls: Sequence[Tensor],
        guidance: float,
    ) -> Tensor:
        """The raw output, as `Predict`.

        Raises:
            BaseModelError: When there are control images, and the model does not read them; when
                it is not trained on what is sampled (`PredictionProof`).
        """
        import torch

        from ...trainer_core.device import borrowed_random_state, seed_generators
        from ...trainer_core.inference.sampler import evaluating

        with self.proof.first():
            first = [each[:1] for each in controls]

            def read() -> None:
                self.references.require(
                    lambda shown: self._predicted(
                        noisy[:1],
                        sigma[:1],
                        conditionings[:1],
                        controls=first if shown else [],
                        guidance=guidance,
                    ),
                    type(self.patcher.model).__name__,
                    noisy.device,
                )

            if torch.is_grad_enabled() and self.proof.is_due(len(noisy)):

                def predict(x: Tensor, level: Tensor, *, exact: bool) -> Tensor:
                    shown = [torch.cat([*[each] * 2, each + 1][: len(x)]) for each in first]
                    texts = [conditionings[0]] * len(x)
                    # A patch that draws, as of merged tokens, draws the same in each pass.
                    with borrowed_random_state(x.device):
                        seed_generators(0, x.device)
                        return self._predicted(
                            x, level, texts, controls=shown, guidance=guidance, exact=exact
                        )

                references = self.references if controls else None
                with evaluating(transformer):
                    try:
                        self.proof.require(predict, noisy[:1], transformer, len(noisy), references)
                    except UNFIT:
                        if controls:
                            read()
                        raise
            if controls:
                read()
            exact = torch.is_grad_enabled()
            return self._predicted(
                noisy, sigma, conditionings, controls=controls, guidance=guidance, exact=exact
            )

    def _predicted(
        self,
        noisy: Tensor,
        sigma: Tensor,
        conditionings: Sequence[Conditioning],
        controls: Sequence[Tensor],
        guidance: float,
        *,
        exact: bool = False,
    ) -> Tensor:
        import torch

        from ...trainer_core.diffusion.streams import join_streams, part_streams, stream_shapes

        noisy, sound = part_streams(noisy, conditionings[0])
        noise, level = self._as_sampled(noisy.float(), sigma.float())
        model = self.patcher.model
        inputs = [endpoint_inputs(model, text, noise[:1].shape) for text in conditionings]
        clean = [_Clean.of(model, each, noise[:1]) for each in inputs]
        x = noise
        if any(each.by_sampler for each in clean):
            rows = enumerate(zip(noise.split(1), level.split(1), strict=True))
            x = torch.cat([clean[row].laid_over(model, *each) for row, each in rows])
        wanted = [
            self._conditioning(
                text, [each[row : row + 1] for each in controls], guidance, inputs[row]
            )
            for row, text in enumerate(conditionings)
        ]
        shapes, beside, whole = [x.shape[1:]], {}, sound is not None
        if sound is None and self.silence is not None:
            sound = self.silence.noisy(noise, sigma.float())
        if sound is not None:
            shapes.append(sound.shape[1:])
            beside = stream_shapes(x, sound)
            x = join_streams(x, sound.float())
        found: list[Tensor | None] = [None] * len(x)
        heard: list[Tensor | None] = [None] * len(x)
        for rows, conds in self._passes(x, level, wanted, clean=clean, shapes=shapes):
            output = self._apply(x[rows], level[rows], conds, exact=exact)
            own, of_sound = part_streams(output, beside)
            for place, row in enumerate(rows):
                found[row] = clean[row].kept(own[place], noisy[row].float(), sigma[row])
                heard[row] = None if of_sound is None else of_sound[place]
        joined = torch.stack([each for each in found if each is not None])
        if whole:
            return join_streams(joined, torch.stack([each for each in heard if each is not None]))
        return joined.squeeze(2) if self._is_video(noisy) else joined

    def _is_video(self, noisy: Tensor) -> bool:
        return self.dimensions == _VIDEO and noisy.ndim == _VIDEO + 1

    def _as_sampled(self, noisy: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Latents and noise levels as ComfyUI's samplers have them."""
        x = noisy.unsqueeze(2) if self._is_video(noisy) else noisy
        if self.straight:
            return x, sigma
        level = self._level(sigma)
        return x * (1 + level).reshape(-1, *[1] * (x.ndim - 1)), level

    def _level(self, sigma: Tensor) -> Tensor:
        """ComfyUI's sigma for shares of noise `[B]`: of one of the model's own levels exactly that.

        Beside pure noise a share in float32 has no digits left that would tell the level.
        """
        import torch

        table, shares = (each.to(sigma) for each in self._levels)
        place = torch.searchsorted(shares, sigma).clamp(max=len(shares) - 1)
        return torch.where(shares[place] == sigma, table[place], sigma / (1 - sigma))

    @cached_property
    def _levels(self) -> tuple[Tensor, Tensor]:
        """ComfyUI's own noise levels, and which shares of noise they are.

        On the CPU: not every device has float64 (MPS).
        """
        table = self.patcher.get_model_object("model_sampling").sigmas.cpu()
        return table, (table.double() / (1 + table.double())).float()

    def _conditioning(
        self,
        text: Conditioning,
        references: Sequence[Tensor],
        guidance: float,
        endpoints: EndpointInputs,
    ) -> dict[str, Any]:
        device = next(iter(text.values())).device
        if self.text is not None and self.text.has_tokens(text):
            entry = self.text.encode(text, device)
        else:
            entry = restored_conditioning(text, device)
        if self.guided:
            entry["guidance"] = guidance
        rule = control_rule(self.patcher.model)
        if references and rule is not None:
            entry |= rule.inputs(references[0], endpoints.steered)
        elif references:
            model = self.patcher.model
            # As Set Reference Latent gives them: the model scales them by itself.
            shaped = (each.unsqueeze(2) if self._is_video(each) else each for each in references)
            entry[REFERENCES] = [model.process_latent_out(each) for each in shaped]
        return {**entry, **endpoints.entries, "model_conds": {}, "uuid": object()}

    def _passes(
        self,
        x: Tensor,
        level: Tensor,
        wanted: Sequence[dict[str, Any]],
        clean: Sequence[_Clean],
        shapes: Sequence[Sequence[int]],
    ) -> list[tuple[list[int], dict[str, Any]]]:
        """Rows that share a pass, and what the model is given of them."""
        samplers = comfy_host.comfyui_module("comfy.samplers")
        passes: list[tuple[list[int], list[Any]]] = []
        for row, entry in enumerate(wanted):
            prepared = self._prepared(
                samplers,
                x[row : row + 1],
                level[row : row + 1],
                entry=entry,
                clean=clean[row],
                shapes=shapes,
            )
            for rows, sharing in passes:
                if self._share(samplers, sharing[0], prepared):
                    rows.append(row)
                    sharing.append(prepared)
                    break
            else:
                passes.append(([row], [prepared]))
        return [
            (rows, samplers.cond_cat([each.conditioning for each in sharing]))
            for rows, sharing in passes
        ]

    def _share(self, samplers: Any, one: Any, other: Any) -> bool:
        """Whether two samples can share a pass."""
        if _ALONE in other.conditioning:
            return False
        video = comfy_host.comfyui_module("comfy.ldm.hunyuan_video.model").HunyuanVideo
        if isinstance(self.patcher.model.diffusion_model, video) and _MASK in other.conditioning:
            return False  # that network puts the masks of all samples into one
        return samplers.can_concat_cond(one, other)

    def _prepared(
        self,
        samplers: Any,
        x: Tensor,
        level: Tensor,
        entry: dict[str, Any],
        clean: _Clean,
        shapes: Sequence[Sequence[int]],
    ) -> Any:
        import torch

        model = self.patcher.model
        model.latent_shapes = [torch.Size((1, *each)) for each in shapes]
        image = torch.zeros_like(x) if clean.image is None else _beside(clean.image, x, 0.0)
        mask = None if clean.mask is None else _beside(clean.mask, x, 1.0)
        (ready,) = samplers.encode_model_conds(
            model.extra_conds,
            [entry],
            x,
            x.device,
            "positive",
            latent_image=image,
            denoise_mask=mask if clean.by_sampler else None,
            seed=0,
            latent_shapes=model.latent_shapes,
        )
        return samplers.get_area_and_mult(ready, x, level)

    @cached_property
    def _followed(self) -> dict[str, Any]:
        options = self.patcher.model_options.get("transformer_options", {})
        kinds = ("patches", "patches_replace")
        return {name: followed_patches(options[name]) for name in kinds if name in options}

    def _apply(self, x: Tensor, level: Tensor, conds: dict[str, Any], *, exact: bool) -> Tensor:
        options = self.patcher.model_options.get("transformer_options", {}) | self._followed
        if exact and comfy_model_management.needs_torch_attention(options):
            options[ATTENTION] = comfy_model_management.torch_attention
        options |= {"cond_or_uncond": [0] * len(x), "sigmas": level, "sample_sigmas": level}
        options["uuids"] = [object() for _ in range(len(x))]
        return self.patcher.model.apply_model(x, level, **conds, transformer_options=options)


def _beside(own: Tensor, x: Tensor, filler: float) -> Tensor:
    """What is known of a clip `[1, C, f, h, w]`, with a filler for sound where `x` has it too."""
    from torch.nn.functional import pad

    flat = own.reshape(1, 1, -1)
    return own if x.ndim == own.ndim else pad(flat, (0, x.shape[-1] - flat.shape[-1]), value=filler)
