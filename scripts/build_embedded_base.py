"""Builds or measures the tiny base model in ``trainer_core/assets``.

Run from the root of the repository::

    python -m scripts.build_embedded_base build --work /tmp/base
    python -m scripts.build_embedded_base measure

A build that was interrupted continues from the checkpoints in the work folder.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch

from scripts.embedded_base.base_folder import write_frozen_parts
from scripts.embedded_base.build import build_all, build_denoiser, build_vae
from scripts.embedded_base.playground import build_playground
from scripts.embedded_base.report import as_markdown, measure_folder

VERBS = ("build", "frozen", "vae", "denoiser", "playground", "measure")
FOLDER = Path(__file__).resolve().parents[1] / "trainer_core" / "assets" / "tiny-qwen-image"


def parsed_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the base model")
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder of checkpoints")
    parser.add_argument("--count", type=int, default=100, help="images per measured row")
    return parser.parse_args()


def main() -> None:
    """Runs one verb."""
    arguments = parsed_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.verb == "measure":
        rows = measure_folder(arguments.folder, arguments.count)
        print(as_markdown(rows))
        raise SystemExit(0 if all(row.passed for row in rows) else 1)
    stages = {
        "build": lambda: build_all(arguments.folder, arguments.work),
        "frozen": lambda: write_frozen_parts(arguments.folder),
        "vae": lambda: build_vae(arguments.folder, arguments.work),
        "denoiser": lambda: build_denoiser(arguments.folder, arguments.work),
        "playground": lambda: build_playground(FOLDER, arguments.folder, arguments.work),
    }
    stages[arguments.verb]()


if __name__ == "__main__":
    main()
