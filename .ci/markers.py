"""Add up what ran for each marker, and fail when too few of the comfy tests did.

Usage: markers.py MINIMUM REPORT [REPORT ...], with the reports that tests/conftest.py writes.
"""

import json
import sys
from collections import Counter
from pathlib import Path


def _counts(report: str) -> dict[str, dict[str, int]]:
    return json.loads(Path(report).read_text(encoding="utf-8"))["markers"]


def main() -> int:
    """Print a line for each marker; 1 when fewer comfy tests ran than the minimum."""
    minimum, *reports = sys.argv[1:]
    total: dict[str, Counter[str]] = {}
    for report in reports:
        for marker, counts in _counts(report).items():
            total.setdefault(marker, Counter()).update(counts)
    for marker, counts in total.items():
        print(f"marker {marker}: ran {counts['ran']}, skipped {counts['skipped']}")
    ran = total["comfy"]["ran"]
    if ran < int(minimum):
        print(f"Only {ran} comfy tests ran; at least {minimum} have to.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
