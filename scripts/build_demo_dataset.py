"""Draws the bundled demo datasets into ``trainer_core/assets``.

Run from the root of the repository: ``python -m scripts.build_demo_dataset``.
"""

from __future__ import annotations

from pathlib import Path

from scripts.embedded_base.demo_datasets import (
    write_edit_dataset,
    write_generate_dataset,
    write_own_dataset,
)

ASSETS = Path(__file__).resolve().parents[1] / "trainer_core" / "assets"


def main() -> None:
    """Writes both datasets; the same files every time."""
    write_generate_dataset(ASSETS / "demo-generate")
    write_edit_dataset(ASSETS / "demo-edit")
    write_own_dataset(ASSETS / "demo-own")
    print(f"wrote the demo datasets to {ASSETS}")


if __name__ == "__main__":
    main()
