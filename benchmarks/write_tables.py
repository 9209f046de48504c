"""Writes the tables of figures in docs again from the files in benchmarks/results.

A table stands between two comments, ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_core.families.presets import GOALS, QUALITIES, Gpu, plan_preset
from trainer_core.families.registry import PACKAGES, get_family
from trainer_core.offload.possible_plans import RESERVE

from . import learning_tables
from .campaign.tables import campaign_table, goals_table, summary, traces_table
from .measuring.record import RESULTS, read_record
from .memory_plans import INPUTS_IN_RAM, NOT_CHECKPOINTED

ROOT = RESULTS.parents[1]
DOCUMENTS = (
    "README.md",
    *("docs/datasets.md", "docs/gpu.md", "docs/memory.md", "docs/preservation.md"),
    *("docs/presets.md", "docs/tables/benchmarks.md", "docs/tables/learning.md"),
    *("docs/tables/memory.md", "docs/video.md"),
)

Row = Mapping[str, Any]

_TABLE = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_NARROW = "layer 3072->3072 bf16 cpu"
_COMPARED = (
    ("lora", ("ours lora", "PEFT lora", "musubi-tuner lora", "ComfyUI lora bypass")),
    ("loha", ("ours loha", "ComfyUI loha weight wrap", "musubi-tuner loha", "PEFT loha")),
    (
        "lokr r16, factor 8",
        (
            "ours lokr r16 f8",
            "LyCORIS lokr r16 f8 bypass",
            "ai-toolkit lokr r16 f8",
            "PEFT lokr r16 f8",
        ),
    ),
    (
        "lokr whole, factor 8",
        (
            "ours lokr full f8",
            "ComfyUI lokr full f8 bypass",
            "ai-toolkit lokr full f8",
            "PEFT lokr full f8",
        ),
    ),
    (
        "lora with DoRA, rows",
        ("ours dora output", "PEFT dora output", "LyCORIS dora output rebuild"),
    ),
)


def main() -> None:
    """Write the tables of every document."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(text: str) -> str:
    """Give a document with its tables made from the files of figures."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def step_table() -> str:
    """A training step on the embedded base."""
    record = read_record(RESULTS / "step_time.json")
    rows = [
        (
            row["name"],
            f"{row['time_ratio']:.2f}",
            f"{row['flop_ratio']:.2f}",
            f"{row['saved_mib']:.1f} MiB",
        )
        for row in record["rows"]
    ]
    heads = ("Step on the embedded base", "Time", "Matmul FLOPs", "Kept for backward")
    return _table(heads, rows) + "\n\n" + _origin(record)


def layer_table() -> str:
    """One Linear, ours beside the peers."""
    section = read_record(RESULTS / "layers.json")["sections"][_NARROW]
    found = {row["name"]: row for row in section["rows"]}
    rows = [("frozen", *_layer_cells([found["frozen"]]))]
    for title, names in _COMPARED:
        # A peer may be absent on the machine that measured.
        here = [name for name in names if name in found]
        sources = ", ".join(_shown(found[name]) for name in here)
        rows.append((f"{title}: {sources}", *_layer_cells([found[name] for name in here])))
    heads = (
        "Linear 3072 -> 3072, bf16, 1024 tokens, rank 16, over frozen",
        *("Time", "Kept / input", "Written", "FLOPs"),
    )
    return _table(heads, rows) + "\n\n" + _origin(section)


def block_table() -> str:
    """A full-width Qwen block."""
    section = read_record(RESULTS / "layers.json")["sections"]["block"]
    rows = [
        (
            row["name"],
            f"{row['time']['median']:.2f}" if row.get("time") else "-",
            f"{row['saved']:.2f}",
            f"{row['written']:.2f}" if "written" in row else "-",
            f"{row['flops']:.2f}" if "flops" in row else "-",
        )
        for row in section["rows"]
    ]
    heads = ("Qwen block, twelve Linears, bf16, over frozen", "Time", "Kept", "Written", "FLOPs")
    return _table(heads, rows) + "\n\n" + _origin(section)


def own_table() -> str:
    """What the tiny template learns from own images, and what it keeps."""
    record = read_record(RESULTS / "own_images.json")
    rows = []
    for way in dict.fromkeys(row["way"] for row in record["rows"]):
        found = [row for row in record["rows"] if row["way"] == way]
        cells = [_shares(found, name) for name in record["bars"]]
        steps = sorted({row["steps"] for row in found})
        rows.append((f"{way}, {' or '.join(map(str, steps))} steps", *cells))
    heads = ("Mean of nine runs (least to most)", "Seen colours", "Unseen colours", "Kept")
    measured = record["measured"]
    return _table(heads, rows) + f"\n\nCommit {measured['commit'][:10]}, {_machine(measured)}."


_OF_GOAL = {
    "Rank": "adapter.rank",
    "Held to the base": "dataset.preservation.share",
    "Noise": "training.sigma.density",
}
_OF_QUALITY = {
    "Pixels": "dataset.resolution",
    "Learning rate": "training.optimizer.learning_rate",
    "Schedule": "training.schedule.name",
}


def preset_goal_table() -> str:
    """What a goal chooses, with steps for three sizes of a dataset."""
    rows = []
    for goal in GOALS:
        found = [plan_preset(next(iter(PACKAGES)), goal, "standard", images=n) for n in (5, 20, 80)]
        values = found[0].values
        steps = ", ".join(str(each.values["training.steps"]) for each in found)
        rows.append((goal, *(f"{values[path]}" for path in _OF_GOAL.values()), steps))
    return _table(("Goal", *_OF_GOAL, "Steps for 5, 20, 80 images"), rows)


def preset_quality_table() -> str:
    """What a quality chooses."""
    rows = []
    for quality in QUALITIES:
        found = plan_preset(next(iter(PACKAGES)), "person", quality, images=20)
        chosen = (f"{found.values[path]}" for path in _OF_QUALITY.values())
        rows.append((quality, *chosen, f"{found.values['training.steps']}"))
    return _table(("Quality", *_OF_QUALITY, "Steps for 20 images of a person"), rows)


def preset_size_table() -> str:
    """The size in pixels that each GPU gets."""
    sizes = {8: 25, 12: 25, 16: 45, 24: 160, 32: 210}
    gpus = [Gpu(size << 30, speed * 1e12) for size, speed in sizes.items()]
    rows = []
    for family in PACKAGES:
        edits = get_family(family).variants != ("generate",)
        for goal in ("person", "edit") if edits else ("person",):
            found = [
                plan_preset(family, goal, "thorough", images=20, gpu=gpu).values for gpu in gpus
            ]
            cells = [str(each["dataset.resolution"]) for each in found]
            of = goal if goal == "edit" else "others" if edits else "all but edit"
            rows.append((get_family(family).title, of, *cells))
    heads = (f"{size} GB, {speed} TFLOPS" for size, speed in sizes.items())
    return _table(("Base", "Goal", *heads), rows)


def preset_result_table() -> str:
    """What presets teach the embedded base."""
    record = read_record(RESULTS / "presets.json")
    rows = []
    for place in dict.fromkeys(map(_preset_of, record["rows"])):
        found = [row for row in record["rows"] if _preset_of(row) == place]
        goal, quality, kind = place
        trained = quality != "none"
        steps = str(found[0]["steps"]) if trained else "-"
        name = f"{quality}, {kind}" if trained else "the base alone"
        rows.append((goal, name, steps, _shares(found, "learned"), _shares(found, "kept")))
    seeds = ", ".join(str(each) for each in sorted({row["seed"] for row in record["rows"]}))
    heads = ("Goal", "Quality, kind", "Steps", "Learned (least to most)", "Kept")
    measured = record["measured"]
    told = f"Seeds {seeds}; commit {measured['commit'][:10]}, {_machine(measured)}."
    return f"{_table(heads, rows)}\n\n{told}"


def _preset_of(row: Row) -> tuple[str, str, str]:
    return row["goal"], row["quality"], row["kind"]


def format_table() -> str:
    """What an adapter learns on a base in each format."""
    record = read_record(RESULTS / "base_formats.json")
    rows = []
    for way in dict.fromkeys(row["way"] for row in record["rows"]):
        found = [row for row in record["rows"] if row["way"] == way]
        rows.append((way, *(_shares(found, name) for name in ("seen", "unseen", "kept"))))
    count = len(record["rows"]) // len(rows)
    heads = (f"Mean of {count} runs (least to most)", "Seen colours", "Unseen colours", "Kept")
    measured = record["measured"]
    return _table(heads, rows) + f"\n\nCommit {measured['commit'][:10]}, {_machine(measured)}."


def peak_table() -> str:
    """Simulated peaks of full-size bases."""
    record = read_record(RESULTS / "memory_plans.json")
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in record["peaks"]:
        place = row["base"], f"{row['pixels']} px", row["base_format"]
        found.setdefault(place, {})[row["swap"]] = row["device"] / (1 << 30)
    heads = {
        NOT_CHECKPOINTED: "none swapped, none checkpointed",
        "none": "none swapped",
        "half": "half swapped",
        "all": "all swapped",
        INPUTS_IN_RAM: "all swapped, inputs in RAM",
    }
    rows = [(*place, *(f"{each[swap]:.1f}" for swap in heads)) for place, each in found.items()]
    heads = ("Base", "Images", "Format of the blocks", *heads.values())
    return _table(heads, rows) + "\n\n" + _simulated(record)


def plan_table() -> str:
    """The plan that is taken on each GPU."""
    record = read_record(RESULTS / "memory_plans.json")
    sizes = list(dict.fromkeys(row["gpu"] for row in record["plans"]))
    found: dict[tuple[str, ...], dict[int, str]] = {}
    for row in record["plans"]:
        place = row["base"], f"{row['pixels']} px"
        found.setdefault(place, {})[row["gpu"]] = _plan_cell(row)
    rows = [(*place, *(each[size] for size in sizes)) for place, each in found.items()]
    heads = ("Base", "Images", *(f"{size} GB" for size in sizes))
    return _table(heads, rows) + "\n\n" + _simulated(record)


def _plan_cell(row: Row) -> str:
    if "refused" in row:
        return "-"
    best = row["best"][0]
    ram = f"{best['ram'] / (1 << 30):.0f} GiB of RAM"
    swap = f", {best['blocks_to_swap']} in {ram}" if best["blocks_to_swap"] else ""
    fewer = best["blocks_to_checkpoint"] < best["blocks"]
    again = f", {best['blocks_to_checkpoint']} checkpointed" if fewer else ""
    inputs = ", inputs in RAM" if best["checkpoint_inputs"] == "ram" else ""
    return f"{best['base_format']}{swap}{again}{inputs}, {best['seconds']:.1f} s"


def _shares(rows: Sequence[Row], name: str) -> str:
    shares = [row[name] for row in rows]
    return f"{sum(shares) / len(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})"


def _simulated(record: Row) -> str:
    return f"Simulated with commit {record['counted']['commit'][:10]}; nothing ran on a GPU."


def dataset_table() -> str:
    """What many samples cost: to scan and plan, to start from a cache, to load."""
    scan, cache = (read_record(RESULTS / f"dataset_{name}.json") for name in ("scan", "cache"))
    starts = {each["samples"]: each for each in cache["starts"]}
    sizes = sorted(starts)
    folders = scan["folders"]
    flat = [*folders["a tenth, one folder"], *folders["one folder"]]
    scans = {
        name: {row["samples"]: row["seconds"] for row in found if row["name"] == "scan and plan"}
        for name, found in (
            ("scan and plan", flat),
            ("the same, in sub-folders", folders["a tree"]),
        )
    }
    rows = [(name, *(_seconds(found.get(size)) for size in sizes)) for name, found in scans.items()]
    for name, key in (
        ("start from a cache without its index, once", "unknown_cpu_seconds"),
        ("start from a warm cache, scan and plan included", "known_cpu_seconds"),
        ("start from the list of a finished cache", "from_list_cpu_seconds"),
    ):
        rows.append((name, *(_seconds(starts[size][key]) for size in sizes)))
    heads = ("CPU seconds for so many images", *(f"{size:,}".replace(",", " ") for size in sizes))
    load, held = cache["load"], starts[sizes[-1]]["bytes_per_sample"]
    return (
        f"{_table(heads, rows)}\n\nMemory a sample: {scan['bytes_per_sample']} bytes for what "
        f"a scan found, {held:.0f} for what is cached. Loading latents of 1024 x 1024 and 200 text "
        f"tokens, checksum included: {load['load_ms']:.2f} ms of CPU, {load['median_ratio']:.2f} "
        f"of safetensors' own reading ({load['bare_ms']:.2f} ms). Commit "
        f"{cache['timed']['commit'][:10]}, {_machine(cache['timed'])}."
    )


def train_lora_table() -> str:
    """A step through a MODEL over one of ComfyUI's own Train LoRA."""
    sections = read_record(RESULTS / "train_lora.json")["sections"]
    rows: list[tuple[str, ...]] = []
    told: list[str] = []
    timed: Row = {"comfyui": ""}
    for model, section in sections.items():
        held = {(row["who"], row["depth"]): row for row in section["rows"]}
        for (who, depth), row in held.items():
            if who != "ours":
                ours = held["ours", min(depth, 1)]
                rows.append((model, *_node_words(who, depth), *_over(ours, row)))
        timed = section["timed"]
        told.append(f"{model}: commit {timed['commit'][:10]}, {_machine(timed)}.")
    heads = ("MODEL", "The node's way", "Its checkpointing", "Time", "Memory", "with the copy")
    return f"{_table(heads, rows)}\n\nComfyUI {timed['comfyui']}. " + " ".join(told)


def _node_words(who: str, depth: int) -> tuple[str, str]:
    ways = {"weights": "weights (default)", "bypass": "bypass"}
    return ways[who], ("none", "depth 1 (default)", "depth 2")[depth]


def _over(ours: Row, node: Row) -> tuple[str, ...]:
    weights = ours["weights"]
    copied = (weights + ours["tensors"]) / (weights + node["tensors"])
    alone = (weights + ours["tensors"]) / node["tensors"]
    shares = (ours["best_cpu_seconds"] / node["best_cpu_seconds"], alone, copied)
    return tuple(f"{share:.2f}" for share in shares)


def clip_memory_table() -> str:
    """What a step on clips takes, and what of the weights is left room for."""
    record = read_record(RESULTS / "clip_memory.json")
    rows: list[tuple[str, ...]] = []
    for row in record["rows"]:
        step = row["adapter"] + row["activations"]
        cells = [f"{step / (1 << 30):.1f}"]
        for gpu in (12, 16, 24):
            left = (gpu << 30) - RESERVE - step
            share = min(1.0, left / row["numbers"])
            cells.append(f"{share:.0%}" if left > 0 else "does not fit")
        rows.append((row["network"], f"{row['frames']} x {row['width']} x {row['height']}", *cells))
    heads = ("Model", "Frames and pixels", "A step beside the weights, GiB")
    heads += tuple(f"Of the fp8 weights on {gpu} GB" for gpu in (12, 16, 24))
    return _table(heads, rows) + f"\n\nComfyUI {record['counted']['comfyui']}. {_simulated(record)}"


TABLES: Mapping[str, Callable[[], str]] = {
    "step_time": step_table,
    "layers": layer_table,
    "block": block_table,
    "own_images": own_table,
    "preset_goals": preset_goal_table,
    "preset_qualities": preset_quality_table,
    "preset_sizes": preset_size_table,
    "preset_results": preset_result_table,
    "base_formats": format_table,
    "memory_peaks": peak_table,
    "memory_plans": plan_table,
    "gpu_campaign": campaign_table,
    "gpu_summary": summary,
    "gpu_traces": traces_table,
    "gpu_goals": goals_table,
    "datasets": dataset_table,
    "train_lora": train_lora_table,
    "clip_memory": clip_memory_table,
    "learning_defaults": learning_tables.default_table,
    "learning_pace": learning_tables.pace_table,
    "learning_blocks": learning_tables.block_table,
    "learning_changes": learning_tables.change_table,
    "learning_products": learning_tables.products_table,
}
"""Each table by the name that stands in its comment."""


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _layer_cells(rows: Sequence[Row]) -> list[str]:
    times = [row["times"].get("eager", {}).get("median") for row in rows]
    cells = [", ".join("-" if time is None else f"{time:.2f}" for time in times)]
    for column, places in (("saved", 1), ("written", 1), ("flops", 2)):
        cells.append(", ".join(f"{row[column]:.{places}f}" for row in rows))
    return cells


def _shown(row: Row) -> str:
    return f"{row['source']} {row['form']}".strip()


def _origin(record: Row) -> str:
    """Which commit and machine the figures are of."""
    timed, counted = record["timed"], record["counted"]
    said = f"Times of commit {timed['commit'][:10]}, {_machine(timed)}"
    if counted != timed:
        said += f"; counters of commit {counted['commit'][:10]}"
    return f"{said}."


def _machine(origin: Row) -> str:
    machine = origin["machine"]
    load = origin["load_average"]
    busy = "" if load is None else f", load {load:.1f} before"
    return f"{machine['processor']}, one thread of {machine['cores']} cores{busy}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
