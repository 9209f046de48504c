"""Settings of one preview, as flags behind its prompt: ``a house --w 768 --d 42 --n "blurry"``.

The words are those of kohya's sd-scripts, which musubi-tuner and ai-toolkit read, too
(kohya-ss/musubi-tuner at 30c658c4, ``training/sampling_prompts.py``; ostris/ai-toolkit at 27a03a91,
``toolkit/config_modules.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ConfigError
from ..printable import shortened, single_line

FLAGS: Mapping[str, str] = {
    "w": "width",
    "h": "height",
    "d": "seed",
    "s": "steps",
    "l": "guidance",
    "n": "negative_prompt",
    "g": "guidance",
    "cfg": "guidance",
    "seed": "seed",
    "steps": "steps",
}
"""Flag to the setting of ``preview``; of several for one setting the first is written."""

_FLAG = re.compile(r"(?:^|\s)--(?=[A-Za-z])")
_LONGEST = 80


def parse_prompt(line: str) -> tuple[str, dict[str, str]]:
    """Part a prompt from the flags behind it.

    Args:
        line: As in ``preview.prompts``.

    Returns:
        The prompt, and settings of ``preview`` with their values as text.

    Raises:
        ConfigError: When a flag is unknown, comes twice, or has no value.
    """
    text, *flags = _FLAG.split(line)
    found: dict[str, str] = {}
    for each in flags:
        name, value = [*each.split(maxsplit=1), ""][:2]
        setting, value = FLAGS.get(name.lower()), value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        if setting is None or setting in found or not value:
            known = "unknown" if setting is None else "there twice" if value else "without a value"
            raise ConfigError(
                f"preview.prompts: --{shortened(single_line(name), _LONGEST)} is {known} in "
                f"{shortened(single_line(line), _LONGEST)!r}",
                "behind a prompt its own " + ", ".join(f"--{f} ({s})" for f, s in FLAGS.items()),
                "Correct the flag or take it out; in a text put a space between -- and a word.",
            )
        found[setting] = value[1:-1] if quoted else value
    return text.strip() if flags else text, found


def as_text(text: str) -> str:
    """A text that `parse_prompt` reads no flags in: a space parts ``--`` from the word."""
    return _FLAG.sub(r"\g<0> ", text)


def prompt_line(text: str, settings: Mapping[str, object]) -> str:
    """Write a prompt with settings of its own, as `parse_prompt` reads it."""
    flags = {setting: flag for flag, setting in reversed([*FLAGS.items()])}
    written = {name: as_text(str(value)) for name, value in settings.items()}
    # What is empty, or begins with a quote of its own, is quoted.
    quoted = {name: f'"{v}"' if v[:1] in "\"'" else v for name, v in written.items()}
    return " ".join([as_text(text), *(f"--{flags[name]} {v}" for name, v in quoted.items())])
