"""What of Wan's Diffusers folders is refused."""

from __future__ import annotations

from pathlib import Path

from ...errors import BaseModelError
from ...weights.diffusers_folder import read_json

REMEDY_OF_TWO = (
    "Name the file of one as base.path, such as wan2.2_t2v_high_noise_14B_fp16.safetensors, and "
    "the Diffusers folder as base.encoders."
)
"""Where a base is two models."""

_REMEDY = "Train it in ComfyUI, through Base From Model, or name a folder of Wan 2.1 T2V."


def require_text_alone(folder: Path) -> None:
    """`FolderSpec.check`: one denoiser, which is given a text alone.

    TI2V-5B takes a time for each token, which is the same for all where no frame is given.

    Raises:
        BaseModelError: When the pipeline has two, or the model is given more.
    """
    index = read_json(folder / "model_index.json")
    transformer = read_json(folder / "transformer" / "config.json")
    second = index.get("transformer_2")
    if isinstance(second, list) and second[0] is not None:
        raise BaseModelError(
            f"base.path: {folder} has two denoisers, one for high noise and one for low noise",
            "one of the two, or a model for all noise levels, such as Wan 2.1 T2V",
            REMEDY_OF_TWO,
        )
    read, made = (transformer.get(name, 16) for name in ("in_channels", "out_channels"))
    if transformer.get("image_dim") or read != made:
        raise BaseModelError(
            f"base.path: {folder} is a Wan model that is given more than a text",
            "a text-to-video model of Wan",
            _REMEDY,
        )
