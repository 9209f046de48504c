"""Captions that cannot be used as the rules ask, and rules that contradict themselves."""

from pathlib import Path

from tests.fixtures.bad_input import BadInput, Outcome, write_image, write_pair
from trainer_core.config import DatasetSection, RunConfig
from trainer_core.config.problems import check_config
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.cached_dataset import CachedItem
from trainer_core.data.caption_notes import caption_notes
from trainer_core.data.control_rules import (
    require_bare_texts,
    require_control_images,
    require_droppable,
)
from trainer_core.data.sources.combined import scan_all
from trainer_core.types import Bucket, Sample


def captioned(caption, **rules):
    """One image with a caption that does, and one with a caption that does not."""

    def make(folder: Path) -> DatasetSection:
        write_pair(folder / "good.png", "a thing")
        write_pair(folder / "bad.png", caption)
        return DatasetSection(path=str(folder), captions=rules)

    return make


def choices(id, caption, *words, **rules):
    words = ("bad.png", "a choice", *words, "dataset.captions.wildcards")
    return BadInput(id, captioned(caption, wildcards=True, **rules), "error", words)


def noted(settings: DatasetSection) -> Outcome:
    found = scan_all(settings)
    notes = caption_notes(found.samples, settings)
    return Outcome((*found.problems, *notes), found.samples)


def drawn(id, caption, **rules):
    words = ("bad.png", "16 texts", "dataset.captions.most", "drawn")
    return BadInput(id, captioned(caption, **rules), "warning", words, run=noted)


def unmoved(id, caption, **rules):
    words = ("bad.png", "dataset.captions.shuffle moves no tag", "dataset.captions.keep")
    return BadInput(id, captioned(caption, **rules), "warning", words, run=noted)


def controls(path: Path) -> DatasetSection:
    write_image(path / "a.png")
    return DatasetSection(path=str(path), control_dropout=0.25)


def droppable(variant):
    def run(settings: DatasetSection) -> Outcome:
        require_droppable(settings, variant, ("layered", "fill"))
        return Outcome(())

    return run


def of_folder(path: Path) -> DatasetSection:
    folder = {"path": str(path), "control_dropout": 0.5}
    return DatasetSection(path=str(path), folders=[folder])


def without_controls(settings: DatasetSection) -> Outcome:
    image = Path(settings.path) / "a.png"
    require_control_images([Sample("a.png", image, "a", 32, 32)], settings, "edit_plus", ())
    return Outcome(())


def finished(settings: DatasetSection) -> Outcome:
    entry = make_entry(Path(settings.path), "text", "a")
    size = Bucket(32, 32)
    item = CachedItem("a.png", size, (size,), entry, (entry,), entry, entry)
    require_bare_texts(settings, [item])
    return Outcome(())


def ruled(**dataset):
    def make(folder: Path) -> RunConfig:
        section = {"path": str(folder), **dataset}
        return RunConfig.model_validate({"base": {"path": "embedded"}, "dataset": section})

    return make


def checked(config: RunConfig) -> Outcome:
    check_config(config)
    return Outcome(())


def contradiction(id, make, *words):
    return BadInput(id, make, "error", words, run=checked)


CASES = [
    choices("choice-not-closed", "a {red|blue car", "not closed", "character 3"),
    choices("choice-not-opened", "a red} car", "not opened", "character 6"),
    choices("choice-of-nothing", "a {} car", "nothing to choose from"),
    choices("choice-of-blanks-only", "a {||} car", "nothing to choose from"),
    choices("inner-choice-not-closed", "{a|{b|c} d", "not closed", "character 1"),
    choices("choices-too-deep", "{" * 11 + "a" + "}" * 11, "more than 10 others"),
    choices("a-hundred-thousand-braces", "{" * 100_000, "more than 10 others"),
    choices("escaped-closing-brace", r"a {red|blue\} car", "not closed"),
    choices(
        "one-bad-line-of-several", "fine\na {red\nfine", "not closed", "{red", variants="lines"
    ),
    BadInput(
        "too-many-tags-to-shuffle",
        captioned(",".join(map(str, range(1001))), shuffle=4),
        "error",
        ("bad.png", "1001 tags", "dataset.captions.shuffle"),
    ),
    BadInput(
        "half-a-million-tags",
        captioned("a," * 500_000, shuffle=64, most=256),
        "error",
        ("bad.png", "500000 tags", "at most 1000 tags"),
    ),
    drawn("a-million-choices", "{a|b|c|d}" * 10, wildcards=True),
    drawn("choices-beyond-all-numbers", "{a|b|c|d}" * 2_000, wildcards=True),
    drawn("choices-that-read-alike", "{a|aa}" * 40, wildcards=True),
    drawn("thousands-of-lines", "\n".join(map(str, range(9000))), variants="lines"),
    unmoved("more-kept-than-there-are", "a, b", shuffle=8, keep=9),
    unmoved("tags-that-are-all-alike", "a, a, a, a", shuffle=8),
    unmoved("nothing-but-separators", ", , ,", shuffle=8),
    unmoved("another-separator", "a; b; c", shuffle=8),
    BadInput(
        "lines-that-are-all-blank",
        captioned(" \n\t\n ", variants="lines"),
        "error",
        ("bad.png", "empty caption file", "dataset.missing_caption"),
    ),
    BadInput(
        "control-dropout-without-controls",
        controls,
        "error",
        ("dataset.control_dropout", "0.25", "generate", "no control images"),
        run=droppable("generate"),
    ),
    BadInput(
        "control-dropout-where-it-is-filled",
        controls,
        "error",
        ("dataset.control_dropout", "fill", "cannot do without"),
        run=droppable("fill"),
    ),
    BadInput(
        "control-dropout-of-layers",
        controls,
        "error",
        ("dataset.control_dropout", "layered", "cannot do without"),
        run=droppable("layered"),
    ),
    BadInput(
        "control-dropout-of-one-folder",
        of_folder,
        "error",
        ("dataset.folders[0].control_dropout", "0.5"),
        run=droppable("generate"),
    ),
    BadInput(
        "no-control-for-a-base-that-edits",
        controls,
        "error",
        ("a.png", "no control image", "edit_plus", "base.variant"),
        run=without_controls,
    ),
    BadInput(
        "finished-cache-without-bare-texts",
        controls,
        "error",
        ("dataset.control_dropout", "a.png", "finished cache", "Encode again"),
        run=finished,
    ),
    contradiction(
        "one-order-of-tags", ruled(captions={"shuffle": 1}), "dataset.captions.shuffle", "2"
    ),
    contradiction(
        "kept-tags-of-none-that-move", ruled(captions={"keep": 2}), "dataset.captions.keep"
    ),
    contradiction(
        "a-separator-of-nothing", ruled(captions={"separator": ";"}), "dataset.captions.separator"
    ),
    contradiction(
        "more-orders-than-texts",
        ruled(captions={"shuffle": 32, "most": 16}),
        "dataset.captions.shuffle",
        "dataset.captions.most",
    ),
    contradiction(
        "rules-of-one-folder",
        ruled(folders=[{"path": "x", "captions": {"shuffle": 1}}]),
        "dataset.folders[0].captions.shuffle",
    ),
]
