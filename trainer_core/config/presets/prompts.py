"""What the previews of a preset show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import ConfigError
from ...filesystem.text_files import read_text
from ..dialect import parse_yaml

_FILE = Path(__file__).with_name("prompts.yaml")
_SHAPES = ("diamond", "house")
"""What the sample sets teach the base that ships with the trainer; the first unless they differ."""


def preview_prompts(
    goal: str, trigger_word: str, captions: Sequence[str], *, embedded: bool
) -> list[str]:
    """Prompts whose images say whether a goal was learned.

    Args:
        goal: ``person``, ``style``, ``object`` or ``edit``.
        trigger_word: Stands in front of each prompt; empty for none.
        captions: Of the training images, without the trigger word. The first is what an edit is
            called; for the base that ships with the trainer they say which shape is taught.
        embedded: Whether it is that base, which knows few words.
    """
    edit = goal == "edit"
    name = ("embedded.edit" if edit else "embedded") if embedded else goal
    texts = parse_yaml(read_text(_FILE, _refused), str(_FILE))[name]
    # On one line, as a node takes it.
    first = " ".join(next((caption for caption in captions if caption), "").split())
    words = " ".join(captions)
    shape = next((shape for shape in _SHAPES if shape in words), _SHAPES[0])
    filled = [text.format(caption=first, shape=shape) for text in texts]
    word = trigger_word.strip()
    whole = [", ".join(part for part in (word, text) if part) for text in filled]
    return list(dict.fromkeys(text for text in whole if text))


def _refused(reason: str) -> ConfigError:
    return ConfigError(
        f"{_FILE} cannot be read ({reason})",
        "the prompts of previews",
        "Install the trainer again.",
    )
