"""What the browser asks and tells about datasets: the routes below ``/adapter_trainer/dataset``."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import DatasetError, InputError, TrainerError
from ...host import comfy_host
from ...host.folders import folder_stamp
from ...host.served_files import image_file
from ..graph_words import in_graph_words, parts_in_graph_words
from . import caption_edits
from . import report as dataset_report
from .caption_proposals import Proposal, Proposals, propose, taken_proposals
from .upload import DROPS

if TYPE_CHECKING:
    from ..quick.plan import Answers

_Query = Mapping[str, str]
_LARGEST_TEXT = 2 * 2**20
_LARGEST_SETTINGS = 4096
_MOST_ITEMS = 200
_SHOWN = 50
_MOST_TAGS = 100
_LONGEST_NAME = 200


def _report(query: _Query, body: bytes) -> Any:
    folder = comfy_host.dataset_path(query["folder"])
    report = _report_of(folder, query)
    first, count = max(0, _number(query, "first")), _number(query, "count", dataset_report.PAGE)
    edits = _edits(folder).count() if _is_own(query["folder"]) else 0
    found = _in_words(report.page(first, max(1, min(count, _MOST_ITEMS))), query)
    return {**found, "editable": _is_own(query["folder"]), "edits": edits}


def _in_words(page: dict[str, Any], query: _Query) -> dict[str, Any]:
    """What is wrong with a page of images, in the words of the node that shows it."""
    node = _node_class(query)
    items = [
        {
            **item,
            "problems": [
                {**each, "text": in_graph_words(each["text"], node)} for each in item["problems"]
            ],
        }
        for item in page["items"]
    ]
    return {**page, "others": [in_graph_words(o, node) for o in page["others"]], "items": items}


def _node_class(query: _Query) -> str:
    from ....trainer_core.filesystem.text_files import parse_object

    settings = parse_object(query.get("settings", "").encode(), _LARGEST_SETTINGS) or {}
    return "AdapterTrainerQuick" if "answers" in settings else "AdapterTrainerDatasetFolder"


def _report_of(folder: Path, query: _Query) -> dataset_report.Report:
    own_settings = dict(_json(query.get("settings", "{}").encode()))
    planned, enough = _planned(own_settings.pop("answers", None))
    settings = dataset_report.read_settings(folder, {**own_settings, **planned})
    report = dataset_report.REPORTS.get(settings, comfy_host.allowed_folders())
    if enough and report.silent and settings.missing_caption == "error":
        # As Run reads it, also where the images have no folder of their own yet.
        settings = settings.model_copy(update={"missing_caption": "empty"})
        report = dataset_report.REPORTS.get(settings, comfy_host.allowed_folders())
    return report


def _planned(answers: object) -> tuple[Mapping[str, Any], bool]:
    """What Train LoRA (Quick) chooses for a folder, and whether a word is enough of a caption.

    Nothing is chosen as long as it cannot be.
    """
    from ..quick.plan import answers_of

    if answers is None:
        return {}, False
    enough = False
    try:
        read = answers_of(answers)
        enough = read.word_is_enough
        return _plan(read, folder_stamp(comfy_host.dataset_path(read.folder))), enough
    except TrainerError:
        return {}, enough


@lru_cache(maxsize=8)
def _plan(answers: Answers, stamp: str) -> Mapping[str, Any]:
    """The dataset's settings; every page of a strip asks for them, and a scan reads the folder.

    Raises:
        TrainerError: When the answers do not fit each other, or the folder.
    """
    from ..quick.plan import plan_run

    del stamp
    try:
        values = plan_run(answers).values
    except DatasetError:
        # The size is known also while captions or pairs are missing, or a file cannot be read.
        values = plan_run(answers, complete=False).values
    own_settings = {name: values.get(f"dataset.{name}") for name in dataset_report.SETTINGS}
    return {name: value for name, value in own_settings.items() if value is not None}


def _image(query: _Query, body: bytes) -> Any:
    image = _named_image(query)
    large = query.get("size") == "large"
    return image_file(dataset_report.THUMBNAILS.get(image, large=large))


def _caption(query: _Query, body: bytes) -> Any:
    image, within = _named_image(query), comfy_host.allowed_folders()
    caption = caption_edits.caption_at(image, _extension(query), within)
    return {**_told(caption), **_proposed(query, _proposals(query), caption.text)}


def _proposed(query: _Query, proposals: Mapping[str, Proposal], text: str | None) -> dict[str, Any]:
    own = proposals.get(query["name"])
    shown = "" if own is None or own.text == text else own.text
    return {"proposal": shown, "proposals": len(proposals)}


def _proposals(query: _Query) -> dict[str, Proposal]:
    return Proposals(comfy_host.dataset_path(query["folder"]), _journals()).read()


def proposed(folder: str, images: Sequence[Any], texts: Sequence[str], extension: str) -> str:
    """Keep a captioner's texts for the images of a person's own folder (`propose`)."""
    extension = _extension({"extension": extension})
    return propose(_own(folder), _journals(), images, texts=texts, extension=extension)


def _save(query: _Query, body: bytes) -> Any:
    folder, image = _own(query["folder"]), _named_image(query)
    request = _json(body, _LARGEST_TEXT)
    text, token = request.get("text"), request.get("token")
    if not isinstance(text, str) or not isinstance(token, str):
        raise InputError("an edit without text or token", "both", "Reload the page.")
    edits = _edits(folder)
    return {**_told(edits.save(image, _extension(query), text, token)), "edits": edits.count()}


def _undo(query: _Query, body: bytes) -> Any:
    edits = _edits(_own(query["folder"]))
    return {"files": [file.as_posix() for file in edits.undo()], "edits": edits.count()}


def _write(query: _Query, body: bytes) -> Any:
    """Captions of all images at once; those that are left out keep theirs."""
    folder, request = _own(query["folder"]), _json(body, _LARGEST_TEXT)
    way = request.get("way")
    proposals = _proposals(query) if way in _PROPOSED else None
    if proposals is None:
        change = caption_edits.change_of(way, request.get("text"), request.get("find"))
    else:
        change = taken_proposals(folder, proposals)
    report, edits = _report_of(folder, query), _edits(folder)
    if report.listed:
        raise InputError(
            "the captions of this folder stand in its metadata file",
            "caption files beside the images",
            "Edit the metadata file in another program.",
        )
    fills = way in {"fill", "propose_fill"}
    images = [
        folder / item["name"]
        for item in report.items
        if not (item["left_out"] or (fills and item["captioned"]))
    ]
    changed, unread = edits.save_all(images, _extension(query), change)
    return {"changed": changed, "unread": unread, "edits": edits.count()}


_PROPOSED = frozenset({"propose", "propose_fill"})


def _dismiss(query: _Query, body: bytes) -> Any:
    """Forget what is proposed."""
    Proposals(_own(query["folder"]), _journals()).write({})
    return {}


def _tags(query: _Query, body: bytes) -> Any:
    """The tags of a folder's captions, the most frequent first."""
    folder, within = comfy_host.dataset_path(query["folder"]), comfy_host.allowed_folders()
    counts: Counter[str] = Counter()
    for item in _report_of(folder, query).items:
        with contextlib.suppress(TrainerError):
            caption = caption_edits.caption_at(folder / item["name"], _extension(query), within)
            counts.update(set(caption_edits.tags_of(caption.text or "")))
    found = [each for each in counts.most_common() if len(each[0]) <= _LONGEST_NAME]
    return {"tags": [list(each) for each in found[:_MOST_TAGS]]}


def _alike(query: _Query, body: bytes) -> Any:
    """Images that look alike: places of each group, in the order of the images."""
    from ....trainer_core.data.clips import is_clip
    from ....trainer_core.data.report.duplicates import near_duplicates
    from ....trainer_core.data.report.image_fingerprints import look_at_images

    folder = comfy_host.dataset_path(query["folder"])
    items = _report_of(folder, query).items
    places = [at for at, item in enumerate(items) if not is_clip(folder / item["name"])]
    looks = look_at_images(
        [folder / items[at]["name"] for at in places], comfy_host.output_folder() / "cache"
    )
    return {"groups": [[places[at] for at in group] for group in near_duplicates(looks.looks)]}


def _choose(query: _Query, body: bytes) -> Any:
    """Leave an image out, or keep another part of it."""
    edits = _edits(_own(query["folder"]))
    edits.choose(_named_image(query), _json(body))
    return {"edits": edits.count()}


def _begin(query: _Query, body: bytes) -> Any:
    adds = query.get("add") == "1"
    if adds:
        # It also refuses a link that leads out.
        _own(f"input/{query['folder']}")
    drop = DROPS.begin(comfy_host.data_roots()["input"][0], query["folder"], adds=adds)
    return {"drop": drop.token}


def _file(query: _Query, body: bytes) -> Any:
    drop, name = DROPS.get(query["drop"]), query["name"]
    try:
        return {"taken": drop.take(name, body)}
    except DatasetError as error:
        # One file; the others go on.
        drop.skipped.append((name[-_LONGEST_NAME:], f"{error.found}. {error.remedy}"))
        return {"taken": 0}


def _look(query: _Query, body: bytes) -> Any:
    """What would be trained of a drop, and what is wrong with it, before its folder is named."""
    drop = DROPS.get(query["drop"])
    page = _in_words(_report_of(drop.look(), query).page(0, 1), query)
    return {**page, **_skipped(drop.skipped)}


def _finish(query: _Query, body: bytes) -> Any:
    adds = query.get("add") == "1"
    if adds:
        _own(f"input/{query['folder']}")
    skipped = DROPS.get(query["drop"]).skipped
    name, added = DROPS.finish(query["drop"], query.get("folder", ""), adds=adds)
    return {"folder": f"input/{name}", "added": added, **_skipped(skipped)}


def _skipped(skipped: Sequence[tuple[str, str]]) -> dict[str, Any]:
    rows = [{"name": each, "reason": reason} for each, reason in skipped[:_SHOWN]]
    return {"skipped": rows}


def _cancel(query: _Query, body: bytes) -> Any:
    DROPS.cancel(query["drop"])
    return {}


def _named_image(query: _Query) -> Path:
    folder = comfy_host.dataset_path(query["folder"])
    return dataset_report.image_below(folder, query["name"], comfy_host.allowed_folders())


def _own(name: str) -> Path:
    """The dataset of that name, if a person may change it."""
    path = comfy_host.dataset_path(name)
    written = comfy_host.output_folder().resolve()
    if name.startswith("demo/") or path.resolve().is_relative_to(written):
        raise InputError(
            f"folder: {name} belongs to the trainer",
            "a folder of your own below input, datasets or output",
            "Drop your images on the node: a folder is made for them.",
        )
    return path


def _is_own(name: str) -> bool:
    try:
        _own(name)
    except InputError:
        return False
    return True


def _edits(folder: Path) -> caption_edits.Edits:
    return caption_edits.Edits(folder, _journals())


def _journals() -> Path:
    return comfy_host.output_folder() / "caption_edits"


def _extension(query: _Query) -> str:
    settings = {"caption_extension": query.get("extension", ".txt")}
    return dataset_report.read_settings(Path(), settings).caption_extension


def _told(caption: caption_edits.Caption) -> dict[str, Any]:
    return {"text": caption.text or "", "token": caption.token, "file": caption.file.name}


def _json(content: bytes, largest: int = _LARGEST_SETTINGS) -> Mapping[str, Any]:
    from ....trainer_core.filesystem.text_files import parse_object

    value = parse_object(content, largest)
    if value is None:
        raise InputError("what was sent is not a JSON object", "one", "Reload the page.")
    return value


def _number(query: _Query, name: str, default: int = 0) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def _answering(answer: Callable[[_Query, bytes], Any]) -> Callable[[_Query, bytes], Any]:
    """The answer with its HTTP status; an error is told in its three parts."""

    def answered(query: _Query, body: bytes) -> tuple[Any, int]:
        try:
            return answer(query, body), 200
        except KeyError as error:
            reason = {"found": f"a request without {error}", "expected": "", "remedy": ""}
            return reason, 400
        except TrainerError as error:
            parts = error.found, error.expected, error.remedy
            sentences = parts_in_graph_words(parts, _node_class(query))
            message = dict(zip(("found", "expected", "remedy"), sentences, strict=True))
            return message, 409 if isinstance(error, InputError) else 507
        except OSError as error:
            # A folder that goes away, or may not be looked into, while it is read.
            reason = {"found": f"a file or folder cannot be read ({error.strerror})"}
            return {**reason, "expected": "", "remedy": "See whether it is there still."}, 409

    return answered


ROUTES = {
    each.__name__[1:]: _answering(each)
    for each in (
        *(_report, _image, _caption),
        *(_tags, _alike, _dismiss),
        *(_save, _undo, _write, _choose, _begin, _file, _look, _finish, _cancel),
    )
}
