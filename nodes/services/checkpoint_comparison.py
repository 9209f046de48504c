"""The comparison of a run's checkpoints in a graph."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import TrainerError
from ..host import comfy_host
from .graph_run import as_image, family_of, guest, source_of
from .merged_run_config import run_config
from .socket_values import BaseChoice, PreviewChoice, RunHandle

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from PIL import Image
    from torch import Tensor

    from ...trainer_core.inference.comparison import Comparison


def compare_run(
    node_id: str,
    base: BaseChoice,
    previews: PreviewChoice,
    run: RunHandle,
    chosen: tuple[str, str],
    clip: Any,
    vae: Any,
    vision: Any = None,
) -> tuple[Tensor, Tensor, str, dict[str, Any]]:
    """Generate each prompt with the base and with each checkpoint.

    Of the `chosen`, checkpoints and strengths as they were written. `vision` says how much images
    are like the dataset's.

    Returns:
        The grid `[1, H, W, 3]` and the images `[N, H, W, 3]`, row by row, float32 in [0, 1]; what
        was seen, in words; and what the node shows: the grid's file.

    Raises:
        TrainerError: When base, prompts or checkpoints cannot be used.
    """
    import torch

    from ...trainer_core.config.read_run_file import load_config
    from ...trainer_core.device import borrowed_threads
    from ...trainer_core.diffusion.flow import SamplingStopped
    from ...trainer_core.inference import comparison
    from ...trainer_core.training.checkpoints.comparison_columns import (
        read_steps,
        read_strengths,
        reference_images,
        run_columns,
    )
    from ..host.comfy_machine import ComfyMachine

    kept = run.folder / "comparisons"
    columns = run_columns(run.folder, read_steps(chosen[0]), read_strengths(chosen[1]))
    output = {"dir": str(comfy_host.output_folder())}
    trained = load_config(run.folder / "run.yaml")
    rate = trained.dataset.fps
    references = reference_images(trained, comfy_host.allowed_folders()) if vision else None
    data = {"fps": rate} if rate else {}
    config = run_config(base, {"preview": previews.values, "output": output, "dataset": data})
    make_source = source_of(clip, vae, base, comfy_host.unload_models, rate=rate)
    bar = comfy_host.ProgressBar(node_id, len(columns) * len(config.preview.prompts))

    def progress(done: int, total: int) -> None:
        if bar.show(done) or comfy_host.interrupted():
            comfy_host.raise_interrupted()

    with guest("sample") as device, borrowed_threads(config.memory, embedded=base.embedded):
        memory = config.memory.model_copy(update={"device": str(device)})
        config = config.model_copy(update={"memory": memory})
        try:
            found = comparison.compare(
                config,
                columns,
                make_source,
                stop=comfy_host.interrupted,
                machine=ComfyMachine(),
                notify=progress,
                family=family_of(base, clip),
            )
        except SamplingStopped:
            comfy_host.raise_interrupted()
    if references is not None:
        found = _beside(found, vision, references, kept)
    grid, _ = comparison.save_comparison(found, kept)
    if inert := found.inert():
        comfy_host.show_text(node_id, f"{', '.join(inert)}: no change, the images are the base's")
    rows = torch.stack([as_image(each) for row in found.images for each in row])
    text = comparison.comparison_text(found)
    shown = {"images": [comfy_host.output_place(grid)], "text": (text,)}
    return as_image(comparison.draw_grid(found))[None], rows, text, shown


def _beside(
    found: Comparison, vision: Any, references: tuple[Iterable[Image.Image], str], kept: Path
) -> Comparison:
    """Measure likeness; where that fails, what was generated is kept all the same."""
    from ...trainer_core.inference.comparison import save_comparison
    from ...trainer_core.inference.likeness import measure_likeness

    embed = functools.partial(_seen, vision)
    try:
        like = measure_likeness(found.images, found.columns, embed, *references)
    except TrainerError:
        save_comparison(found, kept)
        raise
    return replace(found, likeness=like)


def _seen(vision: Any, image: Image.Image) -> Tensor:
    from ..host.clip_vision import seen_in

    if comfy_host.interrupted():
        comfy_host.raise_interrupted()
    return seen_in(vision, as_image(image))
