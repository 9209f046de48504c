"""Which settings a graph asks a training node to train, and how two of them differ.

What a run trains is known when its images are encoded; which settings it was asked for is in the
prompt that is kept with it. So a page can be told which run its settings mean before it is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ....trainer_core.errors import InputError
from ....trainer_core.filesystem.text_files import read_object
from ....trainer_core.printable import shortened
from ..graph_words import in_graph_words, settings_of, titles_in

TRAINING = frozenset({"AdapterTrainerTrain", "AdapterTrainerQuick"})
"""The nodes that train."""

SEED, STEPS, _WORD = "seed", "steps", "trigger_word"
LARGEST_PROMPT = 16 * 2**20
"""Bytes of a prompt that is looked at."""

_MOST_NODES = 500
_LONGEST_VALUE = 40
# Encoders, previews and how a run is begun: they change no run into another.
_BESIDE = frozenset({"clip", "vae", "previews"})
_OF_TRAINING = frozenset({"name", "resume", "resume_from", "keep_in_loras", STEPS})
# Places whose content the trainer compares; before it does, they are all that is known of it.
_CONTENT = frozenset(
    {
        "adapter.start_from",
        "base.adapters",
        "base.path",
        "dataset.metadata",
        "dataset.path",
        "dataset.regularization.path",
        "dataset.subfolders",
    }
)
_opened: list[Opened] = []


Opened = Callable[[Mapping[str, Any], str], tuple[Mapping[str, Any], str] | None]
"""A prompt with the full graph beside a node, and the node of it that trains; None: it has none."""

KEPT = "panel.json"
"""What a run's panel keeps beside it: what it told, and the marks of the images by their folder."""


class GraphSettings(NamedTuple):
    """What a graph asks a training node for.

    Attributes:
        decides: Values of what makes another run, by place: the inputs from the training node on,
            such as ``cache/dataset/folder``; a node's class with a slash behind its place.
        course: Of what a run that is not finished may change on its way.
        steps: How long it trains; 0 where it is not said.
        images: Marks of what folders of images hold, by the names of the folders; folders of one
            content are the same, whatever they are called.
    """

    decides: Mapping[str, Any]
    course: Mapping[str, Any]
    steps: int
    images: Mapping[str, str] = MappingProxyType({})

    def differences(self, before: GraphSettings, *, finished: bool) -> dict[str, str]:
        """How another graph that was asked for before differs, in words, by input.

        Where its run is finished, another course is another run, too.
        """
        pairs = [(before.decides, self.decides)]
        pairs += [(before.course, self.course)] if finished else []
        found: dict[str, str] = {}
        for old, new in pairs:
            for place in sorted(old.keys() | new.keys()):
                # An input that one of them lacks is of another version of the pack.
                both = place in old and place in new
                marks = before.images.get(str(old.get(place))), self.images.get(str(new.get(place)))
                pair = marks if all(marks) else (old.get(place), new.get(place))
                if (both or place.endswith("/")) and pair[0] != pair[1]:
                    name = place.rstrip("/").rpartition("/")[2]
                    was, now = _shown(old, place), _shown(new, place)
                    found[name] = f"{name} was {was} and is {now}"
                    if name == _WORD and old.get(place):
                        found[name] += f", and captions that have {was} keep it"
                    if old.get(place) == new.get(place):
                        found[name] = f"images or captions in {new[place]} have changed"
        return found


class Form(NamedTuple):
    """One of the ways to ask for the same training.

    Attributes:
        node_class: Of the node that trains.
        settings: What it is asked for.
    """

    node_class: str
    settings: GraphSettings


def register_opened(opened: Opened) -> None:
    """Know what a node that chooses settings has chosen."""
    _opened.append(opened)


def graph_settings(prompt: Mapping[str, Any], node_id: str) -> GraphSettings:
    """What a prompt of ComfyUI's API asks a training node for; it may come from anybody."""
    found: dict[str, dict[str, Any]] = {"decides": {}, "course": {}, "beside": {}}
    ahead = [(node_id, "")]
    while ahead and len(found["decides"]) < _MOST_NODES:
        here, place = ahead.pop()
        kind, inputs = node_of(prompt, here)
        found["decides"][f"{place}/"] = kind
        for name, value in inputs.items():
            # The model that is connected is the base, whatever is chosen beside it.
            unused = name == "base" and kind in TRAINING and _is_link(inputs.get("model"))
            part = "beside" if unused else _part(kind, name)
            at = f"{place}/{name}".lstrip("/")
            if not _is_link(value):
                found[part][at] = value
            elif part != "beside":
                ahead.append((value[0], at))
    steps = node_of(prompt, node_id)[1].get(STEPS)
    return GraphSettings(found["decides"], found["course"], steps if isinstance(steps, int) else 0)


def _unread(reason: str) -> InputError:
    return InputError(reason, "what a graph has kept of its run", "Choose another run.")


def setting_forms(prompt: Mapping[str, Any], node_id: str) -> list[Form]:
    """What a training node asks for: as it stands, and as its full graph where it has one."""
    found = [(prompt, node_id)]
    found += [each for opened in _opened if (each := opened(prompt, node_id)) is not None]
    return [Form(node_of(*each)[0], graph_settings(*each)) for each in found]


def kept_forms(version: Path) -> Iterator[list[Form]]:
    """What was asked for when a run was started, of each training node in the kept prompt."""
    prompt = _kept(version / "prompt.json")
    images = kept_panel(version).get("images")
    marks = images if isinstance(images, dict) else {}
    for node_id in prompt:
        if node_of(prompt, node_id)[0] in TRAINING:
            forms = setting_forms(prompt, node_id)
            yield [form._replace(settings=form.settings._replace(images=marks)) for form in forms]


def kept_panel(version: Path) -> Mapping[str, Any]:
    """What the panel of a run has kept; nothing of one that had none."""
    return _kept(version / KEPT)


def _kept(path: Path) -> Mapping[str, Any]:
    try:
        return read_object(path, _unread, LARGEST_PROMPT)
    except InputError:
        return {}


def node_of(prompt: Mapping[str, Any], node_id: str) -> tuple[str, Mapping[str, Any]]:
    """Class and inputs of a prompt's node; nothing where it has no such node."""
    node = prompt.get(node_id)
    node = node if isinstance(node, Mapping) else {}
    inputs = node.get("inputs")
    return str(node.get("class_type", "")), inputs if isinstance(inputs, Mapping) else {}


def words_of(prompt: Mapping[str, Any], node_id: str) -> Callable[[str], str]:
    """Says a message in the words of a prompt's node and of the nodes beside it."""
    own, titles = node_of(prompt, node_id)[0], titles_in(prompt)
    return partial(in_graph_words, node_class=own, titles=titles)


def _is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _part(kind: str, name: str) -> str:
    """What an input of a node is for: which run it is, its course, or neither."""
    from ....trainer_core.config.run import when_resumed

    paths = settings_of(kind)
    if paths is None:
        return "decides"
    # The inputs of a choice have its name in front.
    path = paths.get(name) or paths.get(name.rpartition(".")[2], "")
    if name in _BESIDE or (kind in TRAINING and name in _OF_TRAINING):
        return "beside"
    weight = when_resumed(path)
    if path in _CONTENT:
        return "decides"
    return "beside" if weight in {"around", "free"} else weight


def _shown(values: Mapping[str, Any], place: str) -> str:
    if place not in values:
        return "not there"
    text = str(values[place])
    return shortened(text, _LONGEST_VALUE) if text else "empty"
