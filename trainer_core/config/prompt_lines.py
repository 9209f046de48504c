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
        name, _, value = each.strip().partition(" ")
        setting = FLAGS.get(name)
        value = value.strip()
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


def prompt_line(text: str, settings: Mapping[str, object]) -> str:
    """Write a prompt with settings of its own, as `parse_prompt` reads it."""
    flags = {setting: flag for flag, setting in reversed([*FLAGS.items()])}
    quoted = {name: value if value != "" else "''" for name, value in settings.items()}
    return " ".join([text, *(f"--{flags[name]} {value}" for name, value in quoted.items())])
