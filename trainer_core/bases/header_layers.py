"""The layers that an adapter file's header names, whatever method it is of, and who has them.

Also of files that cannot be read: only names, and how many inputs a layer has, are looked at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..adapter_files.names.key_layouts import PATCH_ENDINGS, TEXT_PART
from ..adapter_files.names.layer_match import match_layer
from ..families.registry import FAMILIES
from .adapters_of_other_models import ARCHITECTURES, Architecture
from .base_weights import known_sizes

if TYPE_CHECKING:
    from ..families.family import Family
    from ..families.published_sizes import PublishedSizes
    from ..tensors.safetensors_writer import TensorInfo

_MOST_NAMES = 20_000
"""Names of a file that are looked at: more than any model has."""

_LONGEST = 500
_MOST = 0.9
"""Share of a file's layers that the model has which it is nearest to."""

_PREFIX = re.compile(
    r"(base_model\.model\.|model\.diffusion_model\.|diffusion_model\.|transformer\.|unet\.|dit\."
    r"|pipe\.dit\.|lora_unet_|lora_transformer_|lycoris_(unet_)?|oft_unet_|model\.)*"
)
_ENDING = re.compile(
    r"[._](?P<factor>lora_linear_layer\.(up|down)|lora[._](down|up|mid|[AB])|hada_[wt]\w+"
    r"|lokr_[wt]\w+|alpha|dora_scale|diff|diff_b|set_weight|magnitude|lora_magnitude_vector"
    r"|[wb]_norm|oft_\w+|boft_\w+|rescale|[ab][12]|on_input|ia3_l|vera_lambda_[bd]|reshape_weight"
    r"|lora_(bias|embedding_[AB])|scale|bias)"
    r"(\.default)?(\.(weight|bias))?$"
)
_INPUTS = ("lora_down", "lora_A", "lora.down", "lora_linear_layer.down")
_HEADER = ("modelspec.architecture", "ss_base_model_version", "ss_base_model")


def layer_inputs(tensors: Mapping[str, TensorInfo]) -> dict[str, int | None]:
    """The layers of an adapter file of any method, by the shapes and formats of its keys.

    A layer's flat name (`architectures`) to how many inputs it has, None where its factors do not
    tell. Text encoders are left out, and weight patches where others have factors.
    """
    inputs: dict[str, int | None] = {}
    patched: dict[str, int | None] = {}
    firsts: dict[str, int] = {}
    for key, info in itertools.islice(tensors.items(), _MOST_NAMES):
        short = key[:_LONGEST]
        ending = _ENDING.search(short)
        if ending is None or re.match(TEXT_PART, short):
            continue
        name = short[: ending.start()]
        prefix = _PREFIX.match(name)
        name = name[prefix.end() if prefix else 0 :].replace(".", "_").rstrip("_")
        # Diffusers once called the layers of attention so, and had no number for the last one.
        name = re.sub("_processor_to_([qkv])$", r"_to_\1", name)
        name = re.sub("_processor_to_out$", "_to_out_0", name)
        if not name:
            continue
        factor = ending["factor"]
        if factor in PATCH_ENDINGS:
            patched[name] = None
            continue
        inputs.setdefault(name, None)
        columns = info.shape[1] if len(info.shape) > 1 else None
        if factor in _INPUTS or factor == "hada_w1_b":
            inputs[name] = columns
        elif factor in ("a1", "a2") and columns:
            inputs[name] = max(info.shape)  # of a GLoRA, which multiplies the weight's inputs
        elif factor == "ia3_l" and columns and columns > 1:
            inputs[name] = columns
        elif factor in ("lokr_w1", "lokr_w1_b", "lokr_w2", "lokr_w2_b") and columns:
            first = firsts.pop(name, None)
            if first is None:
                firsts[name] = columns
            else:
                inputs[name] = first * columns
    # Patches are of norms too, which no table has.
    return inputs or patched


def own_families(layers: Mapping[str, int | None]) -> list[Family]:
    """The families that have every layer of a file, in a known base of its inputs; no twins."""

    def has(family: Family, sizes: PublishedSizes, name: str, inputs: int | None) -> bool:
        place = match_layer(f"lora_unet_{name}", family.layers.key_map)
        module = place.modules[0][0] if place else ""
        size = sizes.of(module)
        fits = size is None or inputs in (None, size[1])
        return bool(module) and fits and not sizes.lacks_block(module)

    found = {
        name: family
        for name, family in FAMILIES.items()
        for sizes in known_sizes(family).values()
        if layers and all(has(family, sizes, *each) for each in layers.items())
    }
    return [family for family in found.values() if family.files.twin not in found]


def fitting_models(
    layers: Mapping[str, int | None], *, by_size: bool = False
) -> tuple[Architecture, ...]:
    """The models that have every layer of a file.

    With `by_size` the size of at least one layer has to speak for a model too, and not names alone.
    """
    if not layers:
        return ()
    found = (each for each in ARCHITECTURES if all(itertools.starmap(each.has, layers.items())))
    if not by_size:
        return tuple(found)
    return tuple(e for e in found if any(itertools.starmap(e.fits_size, layers.items())))


def nearest_models(layers: Mapping[str, int | None]) -> tuple[Architecture, ...]:
    """The models that have most layers of a file; none where too many are in none."""
    counts = {each: sum(itertools.starmap(each.has, layers.items())) for each in ARCHITECTURES}
    most = max(counts.values())
    if not layers or most < _MOST * len(layers):
        return ()
    return tuple(each for each, count in counts.items() if count == most)


def header_hint(metadata: Mapping[str, str]) -> str:
    """What the header of a file says of its model, in small letters and digits alone."""
    words = " ".join(metadata.get(name, "")[:_LONGEST] for name in _HEADER)
    return re.sub(r"[^a-z0-9 ]", "", words.lower())


def titles(models: Sequence[Architecture | Family]) -> str:
    """Names of models for a message, such as ``Chroma1, HunyuanVideo or Mochi``."""
    *others, last = [each.title for each in models] or [""]
    return f"{', '.join(others)} or {last}" if others else last
