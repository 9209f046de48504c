"""Figures of presets: what they are, and how a file of them is read.

A file has layers by name, each a mapping of a setting's YAML path to its figure: ``value``, where
it comes from (``source``: a file of measurements, or a document with its version) and, where a
person would ask, ``why``. Paths that begin with ``plan.`` are not settings: they are what the
length, the learning rate and the size of a run are computed from (`PLAN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...filesystem.text_files import read_text
from ..yaml_dialect import parse_yaml

PLAN: Mapping[str, str] = {
    "plan.samples": "samples of the own images that a run sees, over the root of their number",
    "plan.length": "factor on the number of samples",
    "plan.most_views": "most often that one image is seen",
    "plan.most_samples": "most samples of the own images",
    "plan.hours": "most hours of a run, before the images get smaller",
    "plan.billions": "10^9 numbers of the layers that a token passes",
    "plan.images": "images of a sample: with what is before an edit two",
    "plan.pace": "factor on the learning rate",
    "plan.previews": "rounds of previews in a run",
    "plan.gigabytes_768": "least VRAM for 768 pixels, in GB of 10^9 bytes",
    "plan.gigabytes_1024": "least VRAM for 1024 pixels, in GB of 10^9 bytes",
}
"""Figures that are not settings, and what they mean."""

FOLDER = Path(__file__).parent
"""Of the presets' general files; a family has its own ``presets.yaml``."""


class Figure(NamedTuple):
    """One value of a preset.

    Attributes:
        value: Of the setting.
        source: Where it comes from.
        why: One sentence for an artist, with ``{value}`` and other fields to fill in; empty where
            nobody would ask.
    """

    value: Any
    source: str
    why: str = ""


_FILLED_IN = ("{value}", "{percent}")

Layer = Mapping[str, Figure]


def read_layers(path: Path) -> Mapping[str, Layer]:
    """Read a file of layers.

    Raises:
        ConfigError: When it cannot be read, or a figure lacks its value or its source.
    """

    def refuse(reason: str) -> ConfigError:
        return ConfigError(
            f"{path} cannot be read as presets ({reason})",
            "layers of settings, each with 'value', 'source' and perhaps 'why'",
            "Install the trainer again.",
        )

    values = parse_yaml(read_text(path, refuse), str(path))
    try:
        return {
            name: {key: Figure(**figure) for key, figure in (layer or {}).items()}
            for name, layer in values.items()
        }
    except (TypeError, AttributeError) as error:
        raise refuse(str(error)) from error


def merged(layers: list[Layer]) -> dict[str, Figure]:
    """Lay figures over each other, from the most general to the most special.

    The last one wins. One without a reason takes that of the nearest one below which fits its
    value: of the same value, or a sentence that the value is filled into.
    """
    found: dict[str, Figure] = {}
    reasons: dict[str, list[Figure]] = {}
    for layer in layers:
        for key, figure in layer.items():
            below = () if key in PLAN else reasons.setdefault(key, [])
            fitting = (each.why for each in below if _is_reason_for(each, figure.value))
            found[key] = figure._replace(why=figure.why or next(fitting, ""))
            if figure.why and key not in PLAN:
                reasons[key].insert(0, figure)
    return found


def _is_reason_for(figure: Figure, value: Any) -> bool:
    return figure.value == value or any(field in figure.why for field in _FILLED_IN)
