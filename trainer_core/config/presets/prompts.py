"""What the previews of a preset show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import ConfigError
from ...filesystem.text_files import read_text
from ..preview import as_text
from ..yaml_dialect import parse_yaml

_FILE = Path(__file__).with_name("prompts.yaml")
_MOST = 4


def preview_prompts(
    goal: str, trigger_word: str, captions: Sequence[str], *, embedded: bool
) -> list[str]:
    """Prompts whose images say whether a goal was learned: of the own captions, and others.

    The captions have the trigger word, which stands in front of the others too. The embedded base
    knows few words.
    """
    # On one line, as a node takes it, and without flags: captions may end in another program's.
    lines = (as_text(" ".join(caption.split())) for caption in captions)
    own = list(dict.fromkeys(line for line in lines if line))
    name = ("embedded.edit" if goal == "edit" else "embedded") if embedded else goal
    others = parse_yaml(read_text(_FILE, _refused), str(_FILE))[name]
    word = trigger_word.strip()
    others = [f"{word}, {text}" if word else text for text in others]
    if embedded and own:
        return own[:2] if own[1:] else [*own, *others][:2]
    if embedded and word:
        return [word, *others][:2]
    return list(dict.fromkeys([*own[:1], *others]))[:_MOST]


def _refused(reason: str) -> ConfigError:
    return ConfigError(
        f"{_FILE} cannot be read ({reason})",
        "the prompts of previews",
        "Install the trainer again.",
    )
