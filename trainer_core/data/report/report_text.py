"""A report in words, for a terminal or a node."""

from __future__ import annotations

from collections.abc import Iterator

from ...printable import gibibytes, grouped, listed, shortened, single_line
from .dataset_report import DatasetReport, Finding

_NAMED = 4
_FREQUENT = 12
_LONGEST_WORD = 40  # a caption without spaces is one word
COUNTED = {
    "regularization": "for regularization",
    "validation": "held out",
    "captioned": "with captions",
    "paired": "with control images",
    "masked": "with masks",
    "layered": "with layers",
}
"""Words for the numbers of `DatasetReport.counts` that are told where they are not 0."""

_MARK = {"error": "ERROR", "warning": "warning", "note": "note"}


def report_text(report: DatasetReport) -> str:
    """A report in about twenty lines; names in it are printable."""
    return "\n".join(_lines(report))


def verdict(report: DatasetReport) -> str:
    """What came of it, in a sentence."""
    errors, warnings = len(report.of("error")), len(report.of("warning"))
    if errors:
        return f"A training would stop: {_many(errors, 'error')}, {_many(warnings, 'warning')}."
    if warnings:
        return f"It can be trained; {_many(warnings, 'warning')} to look at."
    return "It can be trained; nothing was found that needs a look."


def finding_line(finding: Finding) -> str:
    """What was found, with the first names, and what to do."""
    named = [single_line(name) for name in finding.names] or [
        single_line(text) for text in finding.details
    ]
    details = finding.details if len(finding.details) == len(named) and finding.names else ()
    if details:
        named = [
            name if single_line(detail).startswith(name) else f"{name} ({single_line(detail)})"
            for name, detail in list(zip(named, details, strict=True))[:_NAMED]
        ] + named[_NAMED:]
    names = f": {listed(named, _NAMED)}" if named else ""
    return f"{finding.title}{names}. {finding.remedy}"


def _lines(report: DatasetReport) -> Iterator[str]:
    counts = report.counts
    parts = {
        name: f"{grouped(counts[name])} {COUNTED[name]}" for name in COUNTED if counts.get(name)
    }
    roles = [parts.pop(name) for name in ("regularization", "validation") if name in parts]
    trained = f"{_many(counts.get('train', 0), 'image')} to train"
    yield f"{single_line(report.title)}: {', '.join((trained, *roles))}"
    if parts:
        yield f"  {', '.join(parts.values())}"
    yield from _captions(report)
    yield from _buckets(report)
    yield ""
    for finding in report.findings:
        yield f"{_MARK[finding.severity]}: {finding_line(finding)}"
    if report.looked is not None:
        yield looked_sentence(report)
    yield verdict(report)


def looked_sentence(report: DatasetReport) -> str:
    """How many images were decoded, and how fast."""
    looked = report.looked
    if looked is None:
        return ""
    rate = looked.images / looked.seconds if looked.seconds > 0 else 0.0
    return (
        f"Looked at {_many(looked.images, 'image')} in {looked.seconds:.1f} s "
        f"({grouped(round(rate))} a second; {grouped(looked.images - looked.decoded)} remembered)."
    )


def _captions(report: DatasetReport) -> Iterator[str]:
    captions = report.captions
    if captions.words is None:
        return
    words = captions.words
    text = f"{words.shortest} to {words.longest} words (median {words.median})"
    if words.shortest == words.longest:
        text = _many(words.longest, "word")
    if captions.tokens is not None:
        text += f", {captions.tokens.longest} of {captions.limit} tokens at most"
    yield f"  captions: {grouped(captions.different)} different; {text}"
    if captions.frequent:
        frequent = captions.frequent[:_FREQUENT]
        shown = [
            f"{single_line(shortened(each, _LONGEST_WORD))} {count}" for each, count in frequent
        ]
        yield f"  frequent words: {', '.join(shown)}"


def _buckets(report: DatasetReport) -> Iterator[str]:
    schedule = report.schedule
    if not report.buckets:
        return
    vram = {
        str(each.bucket): f"; about {gibibytes(each.vram_bytes)} VRAM"
        for each in report.buckets
        if each.vram_bytes is not None
    }
    for line in schedule.plan:
        yield f"  {line}{vram.get(line.strip().partition(':')[0], '')}"
    steps, length = steps_an_epoch(report), ""
    if schedule.steps:
        length = f"; {grouped(schedule.steps)} steps are {schedule.epochs:.3g} epochs"
    yield (
        f"  {steps} step{'' if steps == '1' else 's'} an epoch (batch {schedule.batch_size} x "
        f"{schedule.micro_batches}){length}"
    )


def steps_an_epoch(report: DatasetReport) -> str:
    """The steps of an epoch: a whole number, or one digit behind the point."""
    steps = report.schedule.steps_per_epoch
    whole = steps == round(steps) or steps >= 1000
    return grouped(round(steps)) if whole else f"{steps:.1f}"


def _many(count: int, one: str) -> str:
    return f"1 {one}" if count == 1 else f"{grouped(count)} {one}s"
