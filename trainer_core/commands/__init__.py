"""The verbs of the command line; a module of verbs is loaded when one of them is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """What a verb's help says, and the flags that it knows.

    Attributes:
        module: Module of this package that has the function.
        details: The rest of its help.
        options: Its settings that may also be written ``--name VALUE``.
        switches: Its settings of ``true`` or ``false`` that may also be written ``--name``.
        listed: The end of its help, where that is found out when it is asked for.
    """

    module: str
    summary: str
    usage: str
    details: str
    options: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    listed: Callable[[], str] = str

    @property
    def own(self) -> tuple[str, ...]:
        """The names of its own settings."""
        return (*self.options, *self.switches)

    @property
    def help(self) -> str:
        """Everything that is known of the verb."""
        return f"{self.usage}\n\n{self.details}{self.listed()}"


def _templates() -> str:
    from ..families.presets import GOALS, QUALITIES
    from ..families.run_files import templates

    known = templates()
    purposes = [f"    {family}: {', '.join(names)}" for family, names in known.items()]
    first = next(iter(known))
    lines = [
        f"    GOAL: {', '.join(GOALS)}",
        f"    QUALITY: {', '.join(QUALITIES)}",
        "A family's PURPOSE instead of a goal gives its plain run file:",
        *purposes,
        f"Example: adapter-trainer template {first} {GOALS[0]} {QUALITIES[0]} images=35 > run.yaml",
    ]
    return "\n".join(lines)


_RUN_FILE = (
    "key=value sets a setting for this time; the value is YAML, a relative path is relative to\n"
    "the current folder. --json prints one JSON object a line instead of text."
)

VERBS: Mapping[str, Verb] = {
    "demo": Verb(
        "runs",
        "train on the bundled images and show what was learned",
        "adapter-trainer demo [kind=lora|loha|lokr] [task=generate|edit|own] [output=demo_output]",
        "Needs no download. own: twelve images of a shape, as a first dataset of your own.\n"
        "Writes the adapter, images before and after, and summary.json.",
    ),
    "dataset": Verb(
        "dataset",
        "report a dataset: images, captions, sizes, buckets, what is wrong and what to do",
        "adapter-trainer dataset PATH|run.yaml [--html FILE] [--sheet FILE] [--looks] [--json]\n"
        "    [family=FAMILY] [dataset.resolution=512 ...]",
        "Exit code 2 when `train` would refuse the dataset. --looks decodes the images: it finds\n"
        "those that are there twice, look alike or are of one colour, also across training and\n"
        "held-out ones, clips that stand still and cuts, and looks at control images and masks;\n"
        "what was seen is kept in the cache's folder, where there is one. --html writes one page\n"
        "that holds everything, --sheet a contact sheet (.png, .jpg, .webp); both look.\n"
        + _RUN_FILE,
        options=("html", "sheet"),
        switches=("looks",),
    ),
    "cache": Verb(
        "runs",
        "encode images and captions once",
        "adapter-trainer cache run.yaml [--verify] [--collect [--dry]] [key=value ...]",
        "Encodes what is not in the cache yet; `train` does the same when needed.\n"
        "--verify reads every cached file, names the damaged ones and encodes them again; exit\n"
        "code 1 when there were any. --collect removes what was unused for longest until the\n"
        "cache takes no more than cache.max_gb, never what this run, a list of a finished cache\n"
        "or another run at work needs; --dry only says what that would be.\n" + _RUN_FILE,
        switches=("verify", "collect", "dry"),
    ),
    "train": Verb(
        "runs",
        "train an adapter: encode if needed, train, preview, export",
        "adapter-trainer train run.yaml [key=value ...] [resume=auto|latest|best|none|STEP|FOLDER]",
        "Ctrl-C finishes the step and saves a checkpoint; resume=latest goes on from it, also\n"
        "with another learning rate, schedule, clipping, precision, length or previews.\n"
        "SIGUSR1 saves a checkpoint and generates the previews, and the run goes on.\n"
        "On several devices: accelerate launch --multi_gpu -m trainer_core train run.yaml\n"
        + _RUN_FILE,
    ),
    "sweep": Verb(
        "sweep",
        "train one run file with several values of a few settings, and rank the runs",
        "adapter-trainer sweep sweep.yaml [key=value ...]",
        "sweep.yaml names a run file that holds images out, and a grid or a list of trials:\n"
        "    run: run.yaml\n"
        "    grid: {adapter.rank: [8, 16], learning_rate: [1e-4, 2e-4]}\n"
        "or  trials: [{adapter.rank: 8, batch_size: 2}, {adapter.rank: 16, batch_size: 1}]\n"
        "A setting is named by its path, or by the end of it. All trials are checked first,\n"
        "images are encoded once, the base is loaded once. Each trial is a run of its own, named\n"
        "after what differs; they are ranked by their lowest loss on held-out images. One whose\n"
        "lowest loss is above the median of the finished ones' means ends early (median stopping\n"
        "rule, Google Vizier, KDD 2017); stop_hopeless: false in the file ends none. One that\n"
        "fails stops no other; the next start tries it again. Ctrl-C saves; the same command goes\n"
        "on. NAME_sweep, for sweep.yaml, gets sweep.txt, sweep.json and the best adapter.\n"
        "key=value changes the run file of all trials. --json prints one JSON object a line.",
    ),
    "ledger": Verb(
        "ledger",
        "list the images of a run that are learned worst",
        "adapter-trainer ledger FOLDER [--most 20] [--json]",
        "FOLDER: a version of a run, or a run, whose newest version that has a ledger is taken.\n"
        "An image's ratio is its mean error over that of all images at the same noise levels: 1\n"
        "is like the others. Much more than that is a wrong caption, a damaged image, or one that\n"
        "shows something else. --most: so many images.",
        options=("most",),
    ),
    "report": Verb(
        "run_report",
        "write one HTML page of a run: its course, images and settings",
        "adapter-trainer report FOLDER [--html FILE] [--json]",
        "FOLDER: a version of a run, or a run, whose newest version is taken. The page has\n"
        "everything in it and can be passed on: also the settings with their paths and prompts.\n"
        "It is written as report.html into the version's folder, or to FILE.",
        options=("html",),
    ),
    "sample": Verb(
        "runs",
        "generate images with base and adapter",
        "adapter-trainer sample run.yaml [adapter=FILE] prompt=TEXT [prompt=TEXT ...]\n"
        "    [control=FILE ...] [strength=1.0] [output=samples] [seed=0 width= height= steps= ...]",
        "adapter=best takes the best checkpoint of the run file's run, by held-out images.\n"
        "Without prompt= the run file's preview.prompts are taken. seed, width, height, steps,\n"
        "guidance and negative_prompt are short for preview.seed and so on. control= is a control\n"
        "image of every prompt.\n" + _RUN_FILE,
    ),
    "compare": Verb(
        "compare",
        "generate the same prompts with the checkpoints of a run, side by side",
        "adapter-trainer compare RUN [checkpoints=all|250,500] [strengths=1,0.6] [adapter=FILE ...]"
        "\n    [prompt=TEXT ...] [control=FILE ...] [output=FOLDER] [seed=0 width= steps= ...]",
        "RUN: a version's folder, or the folder of a run, of which the newest version is taken.\n"
        "The first column is the base alone; adapter= adds other files. Without prompt= the run's\n"
        "preview prompts are taken. Writes grid.png, every image and comparison.json into a new\n"
        "folder below the run's comparisons, prints how far each image is from the base's, and\n"
        "names adapters that change nothing.",
    ),
    "inspect": Verb(
        "inspect",
        "describe an adapter file: kind, rank, layout, family, base, norms, metadata",
        "adapter-trainer inspect FILE [--prove [--base PATH] [--family F]] [--verbose] [--json]",
        "Reads any layout that the trainer knows. --verbose prints the whole header too, --json\n"
        "also the norms of every layer.\n"
        "--prove goes the way of ComfyUI's loader: it names every tensor that ComfyUI does not\n"
        "load, and how far each layer's change is off; exit code 1 when anything is. --base names\n"
        "the base whose sizes are taken (only headers are read); without it, the published one.",
        options=("base", "family"),
        switches=("prove", "verbose"),
    ),
    "convert": Verb(
        "convert",
        "rewrite adapter files in another layout: comfyui, diffusers, peft, kohya, lycoris",
        "adapter-trainer convert IN OUT --to LAYOUT [--family F] [--base PATH] [--fused]\n"
        "    [--dtype keep|fp32|bf16|fp16] [--approximate lora|lokr] [--rank N] [--extras drop]\n"
        "    [--overwrite]",
        "IN: an adapter file, PEFT's folder, or a folder of adapters, each of which is written\n"
        "into the folder OUT; not those of folders inside it. What a layout cannot hold is\n"
        "converted exactly, or refused. --base checks the sizes of the layers, and lets DoRA that\n"
        "ComfyUI reads wrongly be written as the difference that it makes.\n"
        "--approximate lora --rank N takes the nearest LoRA, --approximate lokr the nearest\n"
        "Kronecker product for fused layers; both print every layer's error. --fused writes q, k\n"
        "and v as ComfyUI's one layer, for its bypass loaders. --extras drop leaves out what is\n"
        "no factor. A file of both experts of Wan 2.2 becomes OUT_high_noise and OUT_low_noise.\n"
        "Models of videos: --family wan, hunyuan_video, ltx_video, kandinsky5, cosmos_predict2.",
        options=("to", "family", "base", "dtype", "approximate", "rank", "extras"),
        switches=("fused", "overwrite"),
    ),
    "merge": Verb(
        "adapter_tools",
        "make adapters part of a base's weights",
        "adapter-trainer merge BASE ADAPTER [ADAPTER ...] OUT [--strength 1[,0.5 ...]]\n"
        "    [--dtype keep|bf16|fp16|fp32] [--rounding stochastic|nearest] [--family F] "
        "[--overwrite]",
        "BASE: a Diffusers folder (OUT is one too), a single file as ComfyUI has them (also in\n"
        "8 bits), or embedded. --dtype keep leaves every tensor in its number format. --rounding\n"
        "says how results in 8 bits are rounded: up or down by chance, or to the nearest.\n"
        "Prints what rounding took from each layer's change. One tensor is in memory at a time.",
        options=("strength", "family", "dtype", "rounding"),
        switches=("overwrite",),
    ),
    "extract": Verb(
        "adapter_tools",
        "make an adapter of the difference between two bases",
        "adapter-trainer extract BASE TUNED OUT [--kind lora|lokr] [--rank N] [--factor F]\n"
        "    [--targets PRESET] [--layout comfyui] [--dtype fp32] [--family F] [--overwrite]",
        "The bases may be of different form. lora: the closest product of rank N. lokr: the\n"
        "closest Kronecker product; full_matrix=true keeps its second factor whole. Prints each\n"
        "layer's error, and what differs and is not in the adapter.",
        options=("kind", "rank", "factor", "targets", "layout", "dtype", "family"),
        switches=("overwrite", "full_matrix", "decompose_both"),
    ),
    "resize": Verb(
        "adapter_tools",
        "give an adapter another rank or another split of its Kronecker factors",
        "adapter-trainer resize IN OUT [--rank N] [--factor F] [--error 0.05] [--layout L]\n"
        "    [--dtype fp32|bf16|fp16] [--family F] [--overwrite]",
        "--error gives every layer the smallest rank that loses no more than this share of its\n"
        "delta. Layout and number format stay those of IN; PEFT's, OneTrainer's and names\n"
        "without prefix become comfyui. Prints each layer's error.",
        options=("rank", "factor", "error", "layout", "dtype", "family"),
        switches=("overwrite",),
    ),
    "combine": Verb(
        "adapter_tools",
        "add adapters up to one",
        "adapter-trainer combine IN [IN ...] OUT [--weights 1,0.5] [--rank N] [--layout L]\n"
        "    [--dtype fp32|bf16|fp16] [--family F] [--overwrite]",
        "The sum is exact, and its rank the sum of the ranks; --rank N takes the closest lora of\n"
        "that rank and prints each layer's error. loha and lokr become lora.",
        options=("weights", "rank", "layout", "dtype", "family"),
        switches=("overwrite",),
    ),
    "ema": Verb(
        "ema",
        "make adapters of averages over a finished run's steps",
        "adapter-trainer ema RUN [OUT] [--length 0.05,0.1,...] [--overwrite] [--json]",
        "RUN: the folder of a run with training.ema.post_hoc=true, or of one of its versions. Its\n"
        "checkpoints keep two averages each, from which those of other lengths are made; more\n"
        "checkpoints make them more exact (training.keep_every). A length is the average's spread\n"
        "as a share of the run: 0.05 is near its end, 0.2 most of it. OUT: a folder; unset, the\n"
        "run's own. The files are called NAME_ema0.05, in the run's layouts. Prints how near each\n"
        "average is to the wanted one.",
        options=("length",),
        switches=("overwrite",),
    ),
    "doctor": Verb(
        "doctor",
        "check environment and devices; with a run file: base, layers, memory, dataset",
        "adapter-trainer doctor [run.yaml] [key=value ...]\nadapter-trainer doctor BASE --layers",
        "Loads no weights and trains nothing. Exit code 2 when `train` would refuse.\n"
        "--layers lists the layers of a folder or file, also of a model that no family knows.\n"
        + _RUN_FILE,
        switches=("layers",),
    ),
    "template": Verb(
        "runs",
        "print a commented run file; with --from, one made of another trainer's",
        "adapter-trainer template FAMILY GOAL [QUALITY] [images=20] [trigger=WORD] [kind=auto]\n"
        "    [vram=GB] [tflops=N] [variant=V] [--embedded]\n"
        "adapter-trainer template FAMILY [PURPOSE]\n"
        "adapter-trainer template --from FILE [--from FILE] [OUT] [family=FAMILY] [key=value ...]\n"
        'adapter-trainer template --from-command "accelerate launch ... --network_dim 32" [OUT]',
        "GOAL is what the adapter is for, QUALITY how much time there is (unset: standard).\n"
        "Everything else follows, also from how many images there are, from the GPU's memory and\n"
        "from its speed (dense bf16), and stands at the top of the file with the reasons.\n"
        "--embedded: for the tiny base that ships with the trainer.\n"
        "--from turns a run file of ai-toolkit, musubi-tuner or sd-scripts (also their command\n"
        "line, in a .txt or .sh), OneTrainer, qwen-image-finetune, FlyMyAI or diffusion-pipe into\n"
        "ours, says what differs and what has no counterpart, and writes OUT, or prints it.\n",
        options=("images", "trigger", "kind", "vram", "tflops", "variant", "from", "from_command"),
        switches=("embedded",),
        listed=_templates,
    ),
}
"""Verb to help; `Verb.module` has a function of the verb's name, ``(arguments) -> int``."""
