"""The `Family` of a denoiser that a host lends: what the host knows, and nothing of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.names.native_key_map import native_key_map, video_key_map
from ..adapter_files.names.unet_names import published_unet
from ..adapter_files.names.video_model_names import VIDEO_MODELS
from ..weights.file_spec import FileSpec, FolderSpec
from .family import Family
from .family_specs import BaseFiles, LatentSpec, LayerSpec, Predict, PredictionSpec, TextSpec
from .graph_model_denoiser import GRAPH_MODEL, LentDenoiser, only_the_host
from .published_sizes import PublishedSizes

_SIDE = 16
"""Sides of images are multiples of so many pixels at least: blocks of 2 x 2 latents of 8 pixels."""


def lent_family(
    denoiser: LentDenoiser, predict: Predict, key_map: KeyMap, size_multiple: int
) -> Family:
    """Make the family of a lent denoiser; the arguments are fields of its specs."""

    def refuse(*args: object, **named: object) -> NoReturn:
        raise only_the_host("the files")

    def sizes(config: Mapping[str, Any]) -> PublishedSizes:
        refuse()

    return Family(
        name=GRAPH_MODEL,
        title=denoiser.title,
        variants=("generate",),
        # The host's CLIP decides how long a text is.
        text=TextSpec(length=1, load_token_counter=refuse),
        latents=LatentSpec(size_multiple=max(size_multiple, _SIDE), load_vae=refuse),
        layers=LayerSpec(key_map, repeated_blocks=(), presets={}, shared_inputs=(), sizes=sizes),
        files=BaseFiles(
            folder=FolderSpec({}, ()),
            single_file=FileSpec("", Path(), refuse),
            detect=lambda names: False,
            header_hint=r"(?!)",
        ),
        prediction=PredictionSpec(predict),
        load_encoders=refuse,
        distilled=lambda location: "",
        lent=denoiser,
    )


def named_family(title: str, layers: Iterable[str]) -> Family:
    """The family of a lent denoiser that is not there: its layers' names, and nothing else.

    A UNet of Stable Diffusion is titled as headers call its architecture, and all its layers are
    known. Of others `layers` are the paths that are known.
    """
    paths, modules, unet = tuple(layers), None, published_unet(title)
    if unet is not None and set(paths) <= set(unet.layers):
        paths, modules = unet.layers, (*unet.layers, *unet.norms)
    return _absent(title or "a model of a graph", native_key_map(paths, modules))


def video_family(name: str) -> Family:
    """The family of a model of videos that is not there, by its word in `VIDEO_MODELS`."""
    video = VIDEO_MODELS[name]
    return _absent(" or ".join(video.titles), video_key_map(video))


def _absent(title: str, key_map: KeyMap) -> Family:
    def refuse(*args: object, **named: object) -> NoReturn:
        raise only_the_host("the weights")

    denoiser = LentDenoiser(title, "", 0, 1, open=refuse, sigmas=refuse)
    return lent_family(denoiser, refuse, key_map, _SIDE)
