"""The verbs of the command line, one module each; loaded when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """What a verb's help says, and the flags that it knows.

    Attributes:
        summary: One line.
        usage: How it is called.
        details: The rest of its help.
        options: Its settings that may also be written ``--name VALUE``.
        switches: Its settings of ``true`` or ``false`` that may also be written ``--name``.
    """

    summary: str
    usage: str
    details: str
    options: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


_RUN_FILE = (
    "key=value sets a setting for this time; the value is YAML, a relative path is relative to\n"
    "the current folder. --json prints one JSON object a line instead of text."
)

VERBS: Mapping[str, Verb] = {
    "demo": Verb(
        "train on the bundled pictures and show what was learned",
        "adapter-trainer demo [kind=lora|loha|lokr] [task=generate|edit] [output=demo_output]",
        "Needs no download. Writes the adapter, pictures before and after, and summary.json.",
    ),
    "dataset": Verb(
        "report a dataset folder: samples, captions, sizes, buckets, problems",
        "adapter-trainer dataset PATH|run.yaml [family=qwen_image] [dataset.resolution=512 ...]",
        "Changes nothing. Exit code 2 when `train` would refuse the dataset.\n" + _RUN_FILE,
    ),
    "cache": Verb(
        "encode pictures and captions once",
        "adapter-trainer cache run.yaml [key=value ...]",
        "Encodes what is not in the cache yet; `train` does the same when needed.\n" + _RUN_FILE,
    ),
    "train": Verb(
        "train an adapter: encode if needed, train, preview, export",
        "adapter-trainer train run.yaml [key=value ...] [resume=auto|latest|none|FOLDER]",
        "Ctrl-C finishes the step and saves a checkpoint; resume=latest goes on from it.\n"
        "On several devices: accelerate launch --multi_gpu -m trainer_core train run.yaml\n"
        + _RUN_FILE,
    ),
    "sample": Verb(
        "draw pictures with base and adapter",
        "adapter-trainer sample run.yaml [adapter=FILE] prompt=TEXT [prompt=TEXT ...]\n"
        "    [control=FILE ...] [strength=1.0] [output=samples] [seed=0 width= height= steps= ...]",
        "Without prompt= the run file's preview.prompts are drawn. seed, width, height, steps,\n"
        "guidance and negative_prompt are short for preview.seed and so on. control= is a control\n"
        "picture of every prompt.\n" + _RUN_FILE,
    ),
    "inspect": Verb(
        "describe an adapter file: kind, rank, layout, family, base, norms, metadata",
        "adapter-trainer inspect FILE [--json]",
        "Reads any layout that the trainer knows. --json adds the norms of every layer.",
    ),
    "doctor": Verb(
        "check environment and devices; with a run file: base, layers, memory, dataset",
        "adapter-trainer doctor [run.yaml] [key=value ...]",
        "Loads no weights and trains nothing. Exit code 2 when `train` would refuse.\n" + _RUN_FILE,
    ),
    "template": Verb(
        "print a commented run file",
        "adapter-trainer template FAMILY [PURPOSE]",
        "FAMILY: qwen_image or flux. PURPOSE: generate, edit; qwen_image also has edit_plus,\n"
        "tiny and tiny_edit (the embedded base). Example:\n"
        "    adapter-trainer template qwen_image tiny > run.yaml",
    ),
}
"""Verb to help; a verb's module has the same name and a ``run(arguments) -> int``."""
