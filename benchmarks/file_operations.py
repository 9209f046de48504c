"""CPU seconds of converting and inspecting a full-size adapter, and of widening 8-bit weights.

Seconds are those that the CPU worked for this process, on one thread, without imports; what a
busy machine or a slow disk lets it wait does not count. Every figure also stands as a ratio: files
to copying the same file, weights to torch's own conversion. Rounds go through all of them in turn,
and the least of each counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.measuring.record import origin, write_record
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.families.registry import get_family
from trainer_core.tensors.rounding import EIGHT_BIT
from trainer_core.tensors.widening import widened

FAMILY = "qwen_image"
WIDTH = 3072
LAYERS = {
    **{f"attn.{name}": (WIDTH, WIDTH) for name in ("to_q", "to_k", "to_v", "to_out.0")},
    **{f"attn.add_{name}_proj": (WIDTH, WIDTH) for name in "qkv"},
    "attn.to_add_out": (WIDTH, WIDTH),
    **{f"{name}_mlp.net.0.proj": (4 * WIDTH, WIDTH) for name in ("img", "txt")},
    **{f"{name}_mlp.net.2": (WIDTH, 4 * WIDTH) for name in ("img", "txt")},
}
"""A block's layers, with their rows and columns."""

CHUNK = 1 << 22


@dataclass(frozen=True)
class Row:
    """One operation's figures.

    Attributes:
        name: What was done.
        seconds: CPU seconds.
        ratio: Over copying the file, or over torch's conversion.
        nanoseconds: CPU nanoseconds for each number.
    """

    name: str
    seconds: float
    ratio: float
    nanoseconds: float


def write_lora(path: Path, blocks: int, rank: int) -> int:
    """Write a LoRA of a Qwen-Image of so many blocks in bf16; returns how many numbers it has."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"transformer.transformer_blocks.{block}.{layer}.lora_{half}.weight": torch.randn(
            shape, generator=generator
        ).to(torch.bfloat16)
        for block in range(blocks)
        for layer, (rows, columns) in LAYERS.items()
        for half, shape in (("A", (rank, columns)), ("B", (rows, rank)))
    }
    save_file(tensors, path)
    return sum(tensor.numel() for tensor in tensors.values())


def measure_files(folder: Path, blocks: int, rank: int, rounds: int) -> list[Row]:
    """Measure copying, converting and inspecting.

    Args:
        folder: Where the files may lie for a while.
        blocks: Of the model; 60 is full size.
        rank: Of the LoRA.
        rounds: How often each is done.
    """
    source, key_map = folder / "lora.safetensors", get_family(FAMILY).layers.key_map
    numbers = write_lora(source, blocks, rank)

    def convert_to(layout: str) -> Callable[[], object]:
        target = folder / f"{layout}.safetensors"
        return lambda: convert(source, target, layout, key_map, overwrite=True)

    operations = {
        "copy": lambda: _copy(source, folder / "copy.safetensors"),
        "convert to comfyui, proved": convert_to("comfyui"),
        "convert to diffusers": convert_to("diffusers"),
        "inspect": lambda: inspect_adapter(source),
    }
    return _rows(operations, dict.fromkeys(operations, "copy"), numbers, rounds)


def measure_weights(size: int, rounds: int) -> list[Row]:
    """Measure how 8-bit weights become wide ones.

    Args:
        size: Rows and columns of the weight.
        rounds: How often each is done.
    """
    codes = torch.randint(0, 256, (size, size), dtype=torch.uint8)
    operations: dict[str, Callable[[], Tensor]] = {}
    limits: dict[str, str] = {}
    for stored in EIGHT_BIT:
        for wide in (torch.bfloat16, torch.float32):
            title = f"{stored} to {wide}".replace("torch.", "")
            values = codes.view(stored)
            operations[f"{title}, torch"] = lambda values=values, wide=wide: values.to(wide)
            operations[f"{title}, table"] = lambda values=values, wide=wide: widened(values, wide)
            limits |= {f"{title}, {way}": f"{title}, torch" for way in ("torch", "table")}
    return _rows(operations, limits, codes.numel(), rounds)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as given, target.open("wb") as new:
        while chunk := given.read(CHUNK):
            new.write(chunk)
        new.flush()
        os.fsync(new.fileno())


def _rows(
    operations: Mapping[str, Callable[[], object]],
    limits: Mapping[str, str],
    numbers: int,
    rounds: int,
) -> list[Row]:
    seconds = dict.fromkeys(operations, float("inf"))
    for _ in range(rounds):
        for name, operation in operations.items():
            started = time.process_time()
            operation()
            seconds[name] = min(seconds[name], time.process_time() - started)
    return [
        Row(
            name,
            round(spent, 4),
            round(spent / seconds[limits[name]], 3),
            round(spent / numbers * 1e9, 3),
        )
        for name, spent in seconds.items()
    ]


def main() -> None:
    """Measure, print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description="CPU time of work on files.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = origin()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_files(Path(folder), arguments.blocks, arguments.rank, arguments.rounds)
        size = (Path(folder) / "lora.safetensors").stat().st_size
    rows += measure_weights(WIDTH, arguments.rounds)
    print("operation".ljust(42) + "CPU s".rjust(10) + "ratio".rjust(10) + "ns/number".rjust(12))
    for row in rows:
        print(f"{row.name:42}{row.seconds:10.3f}{row.ratio:10.3f}{row.nanoseconds:12.3f}")
    if arguments.output:
        result = {
            "benchmark": "file_operations",
            "rounds": arguments.rounds,
            "rank": arguments.rank,
            "blocks": arguments.blocks,
            "bytes": size,
            "measured": measured,
            "rows": [asdict(row) for row in rows],
        }
        write_record(arguments.output, result)


if __name__ == "__main__":
    main()
