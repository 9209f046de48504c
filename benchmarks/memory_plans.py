"""Peak VRAM of full-size bases in each format, and which plan is taken on a GPU of each size.

Everything is simulated (`trainer_core.training.memory.step_simulation`): no GPU was there.
Weights and what a step makes are counted to the byte; what libraries and the allocator add is a
reserve, and speeds of device and link are taken as given (`MACHINE`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.measuring.step_sizes import step_sizes
from trainer_core.config import MemorySection, RunConfig
from trainer_core.errors import RunError
from trainer_core.families.family import Family
from trainer_core.families.registry import get_family
from trainer_core.offload.choose_plan import alternatives, rank_plans
from trainer_core.offload.machine import LAUNCH_SECONDS
from trainer_core.offload.possible_plans import EITHER, Budget, MemoryPlan, StepSizes
from trainer_core.quantization.formats import FORMATS
from trainer_core.training.memory.short_base import StepInputs
from trainer_core.training.memory.step_simulation import StepSimulation
from trainer_core.weights.diffusers_folder import read_json

from .measuring.record import RESULTS, origin, write_record


@dataclass(frozen=True, slots=True)
class Base:
    """A published base.

    Attributes:
        title: What people call it.
        family: As in a run file.
        edges: Pixels of an image's side.
        sizes: Settings of its denoiser that are not those of the family's bundled configuration.
        frames: Of a clip; 1 of an image.
    """

    title: str
    family: str
    edges: tuple[int, ...] = (1024,)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    frames: int = 1


def _klein(layers: int, single_layers: int, heads: int, text: int) -> Mapping[str, Any]:
    return {
        "num_layers": layers,
        "num_single_layers": single_layers,
        "num_attention_heads": heads,
        "joint_attention_dim": text,
        "guidance_embeds": False,
    }


EDGES = (512, 1024, 1328)
BASES = (
    Base("Qwen-Image", "qwen_image", EDGES),
    Base("FLUX.1", "flux", EDGES),
    Base("Z-Image", "z_image", EDGES),
    Base("FLUX.2 klein 4B", "flux2", sizes=_klein(5, 20, 24, 7680)),
    Base("FLUX.2 klein 9B", "flux2", sizes=_klein(8, 24, 32, 12288)),
    Base("FLUX.2 dev", "flux2"),
    Base("Chroma", "chroma"),
    Base("Krea 2", "krea2"),
    Base("Qwen-Image 2.1", "qwen_image_21"),
    Base("Wan 14B, 33 frames", "wan", (384,), frames=33),
)
COMPARED = ("int8", "fp8", "nf4")
"""Formats beside dense."""

NOT_CHECKPOINTED = "none, not checkpointed"
INPUTS_IN_RAM = "all, inputs in RAM"

GPUS = (8, 12, 16, 24, 32, 48, 80)
"""GiB of VRAM."""

TEXT = 256
"""Tokens of a text: what ComfyUI pads FLUX.1's to, and a long caption for the others."""

MACHINE = {
    "ram_free": 56 << 30,
    "pinned_limit": 38 << 30,
    "link_bytes_per_s": 24e9,
    "flops_per_s": 100e12,
    "attention_per_s": 70e12,
    "moved_per_s": 0.66e12,
    "launch_seconds": LAUNCH_SECONDS,
}
"""A machine with 64 GB of RAM, PCIe 4.0 x16, and a GPU that reaches 100 TFLOPS in bf16, 70 of them
in attention, and moves 1 TB/s. An H200's 132 multiprocessors mix number formats at 0.9 TB/s; this
one, with two thirds of them at a higher clock, at what its memory moves."""

ROOM = Budget(1 << 50, 1 << 50, 1 << 50, 24e9, 100e12)
"""Where every plan fits."""


def main() -> None:
    """Simulate, and write the file of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "memory_plans.json")
    parser.add_argument(
        "--pinned", type=int, default=38, help="GiB of RAM that can be pinned; 22 on Windows"
    )
    counted = origin()
    peaks: list[dict[str, Any]] = []
    plans: list[dict[str, Any]] = []
    arguments = parser.parse_args()
    machine = MACHINE | {"pinned_limit": arguments.pinned << 30}
    for base in BASES:
        family = get_family(base.family)
        transformer = published(family, base.sizes)
        for edge in base.edges:
            sizes = sizes_of(transformer, family, edge, base.frames)
            place = {"base": base.title, "family": base.family, "pixels": edge}
            peaks += [place | row for row in peak_rows(sizes)]
            plans += [place | row for row in plan_rows(sizes, machine)]
    record = {"counted": counted, "machine": machine, "peaks": peaks, "plans": plans}
    write_record(arguments.output, record)


def published(family: Family, sizes: Mapping[str, Any] | None = None) -> nn.Module:
    """A published denoiser on the meta device, from the family's bundled settings."""
    import diffusers

    facts = _config(family, "transformer") | dict(sizes or {})
    kind = getattr(diffusers, family.files.single_file.transformer.partition(".")[2])
    with torch.device("meta"):
        return kind.from_config(facts)


def _config(family: Family, part: str) -> dict[str, Any]:
    return read_json(family.files.single_file.configs / family.variants[0] / part / "config.json")


def sizes_of(transformer: nn.Module, family: Family, edge: int, frames: int = 1) -> StepSizes:
    """What a LoRA of rank 16 needs on square images or clips, one in a batch."""
    channels, pixels = family.latents.of_config(_config(family, "vae"))
    deep = (family.clips.latent_frames(frames),) if family.clips and frames > 1 else ()
    latents = (channels, *deep, edge // pixels, edge // pixels)
    config = RunConfig.model_validate(
        {"family": family.name, "adapter": {"kind": "lora", "rank": 16}}
    )
    inputs = StepInputs((latents,), TEXT, torch.bfloat16)
    simulation = StepSimulation(transformer, family, config, inputs)
    formats = {name: FORMATS[name] for name in COMPARED}
    return step_sizes(simulation, formats, in_file=("dense",))


def peak_rows(sizes: StepSizes) -> Iterator[dict[str, Any]]:
    """The bytes of each format, with none to all blocks swapped, and checkpointed or not."""
    for name, each in sizes.formats.items():
        blocks = len(each.kept.base.blocks)
        for label, swapped, again, inputs in (
            (NOT_CHECKPOINTED, 0, 0, "device"),
            ("none", 0, blocks, "device"),
            ("half", blocks // 2, blocks, "device"),
            ("all", blocks, blocks, "device"),
            (INPUTS_IN_RAM, blocks, blocks, "ram"),
        ):
            chosen = {
                "base_format": name,
                "blocks_to_swap": swapped,
                "blocks_to_checkpoint": again,
                "checkpoint_inputs": inputs,
            }
            settings = MemorySection().model_copy(update=chosen)
            yield {"swap": label} | as_row(rank_plans(sizes, settings, ROOM)[0])


def plan_rows(sizes: StepSizes, machine: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The plan that ``auto`` takes on each GPU, and what it would take next."""
    settings = MemorySection().model_copy(update={"swap_slots": EITHER})
    for gpu in GPUS:
        budget = Budget(device_free=gpu << 30, **machine)
        try:
            found = alternatives(rank_plans(sizes, settings, budget), 2)
        except RunError as error:
            yield {"gpu": gpu, "refused": error.found}
            continue
        yield {"gpu": gpu, "reserve": budget.reserve, "best": [as_row(each) for each in found]}


def as_row(plan: MemoryPlan) -> dict[str, Any]:
    """A plan as it stands in the file."""
    return asdict(plan) | {"device": plan.device, "seconds": round(plan.seconds, 2)}


if __name__ == "__main__":
    main()
