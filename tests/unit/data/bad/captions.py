"""Captions that cannot be used as the rules ask, and rules that contradict themselves."""

from pathlib import Path

from tests.fixtures.bad_input import Outcome, error, warning, write_image, write_pair
from trainer_core.config import DatasetSection
from trainer_core.data.base_requirements import (
    endpoint_kinds,
    require_bare_texts,
    require_clips,
    require_control_images,
    require_droppable,
    require_steering,
)
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.data.captions.notes import caption_notes
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.types import Bucket, ClipPart, Sample, StartFrames


def captioned(caption, **rules):
    """One image with a caption that does, and one with a caption that does not."""

    def make(folder: Path) -> DatasetSection:
        write_pair(folder / "good.png", "a thing")
        write_pair(folder / "bad.png", caption)
        return DatasetSection(path=str(folder), captions=rules)

    return make


def noted(settings: DatasetSection) -> Outcome:
    found = scan_all(settings)
    notes = caption_notes(found.samples, settings)
    return Outcome((*found.problems, *notes), found.samples)


def drawn(id, caption, **rules):
    told = "bad.png ... 16 texts ... dataset.captions.most ... drawn"
    return warning(id, captioned(caption, **rules), told, run=noted)


def unmoved(id, caption, **rules):
    told = "bad.png ... dataset.captions.shuffle moves no tag ... dataset.captions.keep"
    return warning(id, captioned(caption, **rules), told, run=noted)


def controls(path: Path) -> DatasetSection:
    write_image(path / "a.png")
    return DatasetSection(path=str(path), control_dropout=0.25)


def of_folder(path: Path) -> DatasetSection:
    folder = {"path": str(path), "control_dropout": 0.5}
    return DatasetSection(path=str(path), folders=[folder])


def refused(id, told, check, make=controls):
    """What a base cannot be trained on, whatever the folder holds."""

    def run(settings: DatasetSection) -> Outcome:
        check(settings)
        return Outcome(())

    return error(id, make, told, run=run)


def undroppable(id, told, variant, make=controls):
    return refused(id, told, lambda s: require_droppable(s, variant, ("layered", "fill")), make)


def without_controls(settings: DatasetSection) -> None:
    image = Path(settings.path) / "a.png"
    require_control_images([Sample("a.png", image, "a", 32, 32)], settings, "edit_plus", ())


def finished(settings: DatasetSection) -> None:
    entry = make_entry(Path(settings.path), "text", "a")
    size = Bucket(32, 32)
    item = CachedItem("a.png", size, (size,), entry, (entry,), entry, entry)
    require_bare_texts(settings, [item])


def given(id, told, starts=None, **shares):
    def make(path: Path) -> DatasetSection:
        write_image(path / "a.png")
        return DatasetSection(path=str(path), **shares)

    return refused(id, told, lambda settings: endpoint_kinds(settings, starts), make)


def steered(id, told, steers, **changes):
    given = {"clip": ClipPart(0.0, 5, 16.0), **changes}
    sample = Sample("a.mp4", Path("a.mp4"), "a", 32, 32, **given)
    return refused(id, told, lambda settings: require_steering([sample], steered=steers))


EITHER, ALWAYS = StartFrames(always=False, end=False), StartFrames(always=True, end=True)

CASES = [
    refused(
        "image-of-a-base-that-begins",
        "a.png is an image ... Take the images out",
        lambda settings: require_clips(["a.png"], ALWAYS),
    ),
    steered("clip-without-control", "a.mp4 has no control clip ... control_images", steers=True),
    steered("image-of-a-steered-base", "a.mp4 is an image ... choose another", True, clip=None),
    steered(
        "control-clip-that-steers-nothing",
        "a.mp4 has a control clip ... Remove",
        False,
        controls=(Path("c.mp4"),),
    ),
    steered(
        "several-control-clips",
        "a.mp4 has 2 control clips ... one for each",
        True,
        controls=(Path("c.mp4"), Path("d.mp4")),
    ),
    given("start-frame-not-taken", "dataset.start_frame is 0.5 ... no frame", start_frame=0.5),
    given("end-frame-not-taken", "dataset.end_frame is 0.5 ... no last", EITHER, end_frame=0.5),
    given("start-frame-left-out", "dataset.start_frame is 0 ... always", ALWAYS, start_frame=0.0),
    error(
        "half-a-million-tags",
        captioned("a," * 500_000, shuffle=64, most=256),
        "bad.png ... 500000 tags ... at most 1000 tags",
    ),
    drawn("a-million-choices", "{a|b|c|d}" * 10, wildcards=True),
    drawn("choices-beyond-all-numbers", "{a|b|c|d}" * 2_000, wildcards=True),
    drawn("thousands-of-lines", "\n".join(map(str, range(9000))), variants="lines"),
    unmoved("more-kept-than-there-are", "a, b", shuffle=8, keep=9),
    unmoved("tags-that-are-all-alike", "a, a, a, a", shuffle=8),
    unmoved("nothing-but-separators", ", , ,", shuffle=8),
    unmoved("another-separator", "a; b; c", shuffle=8),
    error(
        "lines-that-are-all-blank",
        captioned(" \n\t\n ", variants="lines"),
        "bad.png ... empty caption file ... dataset.missing_caption",
    ),
    undroppable(
        "control-dropout-without-controls",
        "dataset.control_dropout ... 0.25 ... generate ... no control images",
        "generate",
    ),
    undroppable(
        "control-dropout-where-it-is-filled",
        "dataset.control_dropout ... fill ... cannot do without",
        "fill",
    ),
    undroppable(
        "control-dropout-of-one-folder",
        "dataset.folders[0].control_dropout ... 0.5",
        *("generate", of_folder),
    ),
    refused(
        "no-control-for-a-base-that-edits",
        "a.png ... no control image ... edit_plus ... base.variant",
        without_controls,
    ),
    refused(
        "finished-cache-without-bare-texts",
        "dataset.control_dropout ... a.png ... finished cache ... Encode again",
        finished,
    ),
]
