"""Readers: what turns a value of another program's file into ours, or says what was expected."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Read = Callable[[Any], Any]
"""Turns a value of another program into ours; raises `UnfitError`."""

ABSENT: Any = object()
"""What stands for no value at all."""

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_LARGEST = 1e100
"""So that no product of a few numbers of a file is infinite."""
_ON, _OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_FLAGS = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}
_NOTHING = (*_OFF, "none", "", "[]", "{}")
"""Words of values that ask for nothing, and zero in every spelling."""


class UnfitError(ValueError):
    """A value that a key cannot have; its text is what was expected."""


def is_nothing(value: Any) -> bool:
    """Whether a value asks for nothing, as a program's word or as plain data."""
    word = str(value).strip().lower()
    return word in _NOTHING or (NUMBER.fullmatch(word) is not None and float(word) == 0)


def number(value: Any) -> float:
    """A number, also as YAML 1.1 gives ``1e-4``: as text."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitError("a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise UnfitError(f"a number of at most {_LARGEST:g}")
    return float(value)


def whole(value: Any) -> int:
    """A whole number."""
    if (found := number(value)) != int(found):
        raise UnfitError("a whole number")
    return int(found)


def flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise UnfitError("true or false")


def text(value: Any) -> str:
    """A text; a number is written as one."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise UnfitError("a text")


def texts(value: Any) -> list[str]:
    """A list of texts; one alone is a list of one."""
    return [text(each) for each in value] if isinstance(value, list | tuple) else [text(value)]


def numbers(value: Any) -> list[float]:
    """A list of numbers; one alone is a list of one."""
    return [number(each) for each in value] if isinstance(value, list | tuple) else [number(value)]


def mapping(value: Any) -> Mapping[str, Any]:
    """Names with values."""
    if not isinstance(value, Mapping):
        raise UnfitError("names with values")
    return value


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """A list of names with values."""
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return value
    raise UnfitError("a list of names with values")


def list_of(read: Read) -> Read:
    """A reader of lists, by that of their items."""

    def read_each(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise UnfitError("a list")
        return [read(each) for each in value]

    return read_each


def switch(on: Any, off: Any = ABSENT) -> Read:
    """A reader of true and false as values of ours."""
    return lambda value: on if flag(value) else off


def word_of(choices: Mapping[str, Any]) -> Read:
    """A reader of words, whatever their case."""

    def read(value: Any) -> Any:
        name = text(value).strip().lower()
        if name not in choices:
            raise UnfitError("one of " + ", ".join(choices))
        return choices[name]

    return read


def side_of(width: float, height: float) -> int:
    """The resolution whose square has as many pixels as an image."""
    return round(math.sqrt(width * height))


def sides(value: Any) -> int:
    """One side, ``[width, height]`` or ``width,height``, as a resolution."""
    parts = value.split(",") if isinstance(value, str) else value
    found = numbers(parts)
    found *= 2 if len(found) == 1 else 1
    if len(found) != 2 or min(found) <= 0:
        raise UnfitError("a number of pixels, or [width, height]")
    return side_of(*found)


def pixels(value: Any) -> int:
    """A number of pixels, also as ``512*512``."""
    factors = [whole(part.strip()) for part in text(value).split("*")]
    if len(factors) > 2 or min(factors) <= 0:
        raise UnfitError("a number of pixels, such as 262144 or 512*512")
    return math.prod(factors)


def containing(value: Any) -> list[str]:
    """Parts of layer names, as regular expressions on whole names."""
    return [f".*{re.escape(each.strip())}.*" for each in texts(value) if each.strip()]


def ending(value: Any) -> list[str]:
    """PEFT's target modules, which are ends of layer names at a dot."""
    return [rf"(.*\.)?{re.escape(each.strip())}" for each in texts(value) if each.strip()]


def patterns(value: Any) -> list[str]:
    """A list in the syntax of Python; a shell may have taken the quotes in it."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    raise UnfitError(
        "a list of patterns in quotes, as \"exclude_patterns=[r'.*mlp.*']\" in quotes of its own "
        "that keep those inside from the shell"
    )


def extension(value: Any) -> str:
    """The end of a file's name, with or without its dot."""
    return "." + text(value).strip().removeprefix(".")


_HALF = ("fp16", "float16", "float_16")
_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "bfloat_16"), "bf16"),
    **dict.fromkeys(("fp32", "float", "float32", "float_32", "tfloat_32"), "fp32"),
    **dict.fromkeys(_HALF, "fp16"),
}
BASE_FORMATS = {
    **dict.fromkeys(("qfloat8", "float8", "float8_e4m3fn", "float8_e5m2", "fp8"), "fp8"),
    **dict.fromkeys(("qint8", "int8", "uint8", "uint7", "uint6", "convrot8"), "int8"),
    **dict.fromkeys(("uint5", "qint4", "int4", "convrot4", "nf4"), "nf4"),
    "uint4": "uint4",
    "uint3": "uint3",
    "uint2": "uint3",
}
"""Formats of other programs that weights are rounded to, to the nearest of ours."""

READERS: Mapping[str, Read] = {
    "flag": flag,
    "number": number,
    "text": text,
    "whole": whole,
    "sides": sides,
    "side": lambda value: side_of(pixels(value), 1),
    "area": lambda value: sides(value) ** 2,
    "pixels": lambda value: pixels(value[0] if isinstance(value, list) and value else value),
    "containing": containing,
    "ending": ending,
    "patterns": patterns,
    "extension": extension,
    # fp16 leaves the number format that a run computes in to the device.
    "precision": word_of({**_DTYPES, "no": "fp32", **dict.fromkeys(_HALF, "auto")}),
    "file_dtype": word_of(_DTYPES),
    "base_format": word_of(
        {**BASE_FORMATS, **dict.fromkeys((*_HALF, "bfloat16", "float32"), ABSENT)}
    ),
    "not": lambda value: not flag(value),
    "minus": lambda value: 0.0 - number(value),
    "rounds": lambda value: round(number(value)),
    "several": lambda value: True if whole(value) > 1 else ABSENT,
    "share": lambda value: found if 0 < (found := number(value)) < 1 else ABSENT,
    "steps": lambda value: ABSENT if 0 <= (found := number(value)) < 1 else int(found),
    "longest": lambda value: int(max(numbers(value), default=1)),
    "filled": lambda value: value if isinstance(value, str) and value else ABSENT,
    "from_noise": lambda value: 1 - found / 1000 if (found := whole(value)) > 0 else ABSENT,
    "from_image": lambda value: (1000 - found) / 1000 if (found := whole(value)) < 999 else ABSENT,
    # A second loss of each sample there, a share of each batch here.
    "second_loss": lambda value: round(max(0.0, found := number(value)) / (1 + abs(found)), 3),
    "axis": switch("output", "input"),
    "plus_one": lambda value: number(value) + 1,
    "positive": lambda value: max(1e-4, number(value)),
    "orders": lambda value: int(value) if isinstance(value, bool) else whole(value),
    "skips": switch("skip", "empty"),
    "half": lambda value: number(value) / 2,
    "minus_half": lambda value: 0.0 - number(value) / 2,
    "thousandth": lambda value: number(value) / 1000,
    "before": lambda value: f"{text(value)} ",
    "behind": lambda value: f" {text(value)}",
    "checkpointed": lambda value: value == "unsloth" or flag(value),
}
"""The readers that tables name."""
