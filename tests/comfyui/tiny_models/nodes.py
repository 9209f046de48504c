"""The nodes of the pack; ComfyUI's interpreter imports this."""

from __future__ import annotations

from comfy_api.latest import io

from .denoisers import PRECISIONS, tiny_model
from .sizes import BEGINNING, TINY
from .texts import tiny_clip
from .vaes import tiny_vae, tiny_vision
from .weights import weights_hash


class TinyModelForTests(io.ComfyNode):
    """Gives a tiny MODEL and what fits it; the same for one input.

    That is its CLIP, its VAE, its CLIP_VISION and the VAE of its sound.
    """

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TinyModelForTests",
            category="tests",
            inputs=[
                io.Combo.Input("model", options=[*TINY, *BEGINNING]),
                io.Int.Input("seed", default=0),
                io.Combo.Input("precision", options=list(PRECISIONS), default="fp32"),
            ],
            outputs=[
                *(io.Model.Output(), io.Clip.Output(), io.Vae.Output()),
                *(io.ClipVision.Output(), io.Vae.Output()),
            ],
        )

    @classmethod
    def execute(cls, model, seed=0, precision="fp32"):
        sizes = TINY.get(model) or BEGINNING[model]
        encoders = tiny_clip(sizes.text, seed), tiny_vae(sizes.vae, seed)
        encoders += (tiny_vision(sizes.vision, seed) if sizes.vision else None,)
        encoders += (tiny_vae("ltx_audio", seed) if model.startswith("ltxav") else None,)
        return io.NodeOutput(tiny_model(model, seed, precision), *encoders)


class WeightsHash(io.ComfyNode):
    """Says the hash of a MODEL's weights; ``after`` is anything that has to have run before."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WeightsHash",
            category="tests",
            inputs=[io.Model.Input("model"), io.AnyType.Input("after", optional=True)],
            outputs=[io.String.Output()],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs):
        # The inputs do not tell what happened to the weights, so no result is ever kept.
        return float("nan")

    @classmethod
    def execute(cls, model, after=None):
        found = weights_hash(model)
        return io.NodeOutput(found, ui={"text": [found]})
