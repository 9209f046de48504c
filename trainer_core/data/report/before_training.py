"""What of a report is told before every training: no image is opened for it."""

from __future__ import annotations

from collections.abc import Sequence

from ...config import DatasetSection
from ...errors import DatasetError
from ...types import Sample
from .caption_findings import bracket_findings
from .make_report import in_order, quick_findings
from .report_text import finding_line


def warnings_before(
    samples: Sequence[Sample], dataset: DatasetSection, *, weighs: bool = False
) -> tuple[str, ...]:
    """Look once more at what is about to be trained.

    Args:
        weighs: Whether the tokenizer reads round brackets as weights.

    Returns:
        Warnings in words, beside those that scan and plan tell themselves.

    Raises:
        DatasetError: When something in it stops a training.
    """
    brackets = bracket_findings(samples, dataset) if weighs else ()
    findings = in_order((*quick_findings(samples, dataset), *brackets))
    for each in findings:
        if each.severity == "error":
            found = finding_line(each).removesuffix(f". {each.remedy}")
            raise DatasetError(f"dataset: {found}", "a dataset without that", each.remedy)
    return tuple(finding_line(each) for each in findings if each.severity == "warning")
