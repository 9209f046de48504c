"""The verbs of run files: ``train``, ``cache``, ``sample``, ``template`` and ``demo``."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..config import PreviewSection, RunConfig
from ..config.presets.prompts import preview_prompts
from ..config.run_file_problems import check_config
from ..errors import ConfigError, InputError
from ..families.presets import GOALS, Gpu, plan_preset
from ..families.run_files import run_file_of, run_file_template, templates
from ..filesystem.storage import given_path
from . import VERBS
from .adapter_output import clear_leftovers
from .arguments import Arguments, existing, is_set, numbers
from .console import show, show_image, show_json, show_report
from .missing_inputs import require_inputs
from .run_observers import watching

if TYPE_CHECKING:
    from ..demo.run import DemoSummary, Task


def train(arguments: Arguments) -> int:
    """Train what the run file says; returns the exit code.

    A run that was asked to end, and has saved its state, has done what it was asked: 0. What it
    prints last says which it was.

    Raises:
        TrainerError: When the input is wrong or the run failed.
    """
    config = arguments.config()
    require_inputs(config)
    from .. import training
    from ..device import resolve_device

    processes = training.AccelerateProcesses(resolve_device(config.memory.device))
    with watching(as_json=arguments.json) as observer:
        training.train(config, observer, processes)
    return 0


def cache(arguments: Arguments) -> int:
    """Encode what is not in the cache yet, and say what was done; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the cache cannot be written.
    """
    own, rest = arguments.split(VERBS["cache"].own)
    options = {name: values[-1] for name, values in own.items()}
    verify, dry = is_set(options, "verify"), is_set(options, "dry")
    config = rest.config()
    require_inputs(config)
    collecting = dry or is_set(options, "collect")
    if collecting and config.cache.max_gb is None:
        raise ConfigError(
            "cache.max_gb is not set, and the cache is to be made smaller",
            "the gigabytes that it may take",
            "Set cache.max_gb in the run file or on the command line: cache.max_gb=50.",
        )
    from ..data.cache.build_cache import cache_folder
    from ..device import borrowed_threads, resolve_device
    from ..training.observer import RunCancelledError
    from ..training.prepare.encode_dataset import collect_cache, prepare, save_manifest
    from ..training.step.processes import SingleProcess

    processes = SingleProcess(resolve_device(config.memory.device))
    threads = borrowed_threads(config.memory, embedded=config.base.path == "embedded")
    changes = {"verify": verify or config.cache.verify}
    limit = {"max_gb": None} if collecting else {}
    cache = config.cache.model_copy(update={**changes, **limit})
    with watching(as_json=arguments.json) as observer, threads:
        try:
            prepared = prepare(config.model_copy(update={"cache": cache}), observer, processes)
        except RunCancelledError:
            show_report({"folder": cache_folder(config), "cancelled": True}, as_json=arguments.json)
            return 0
        manifest = save_manifest(config, prepared)
        dataset, prompts = prepared.dataset, prepared.prompts
        if collecting:
            collect_cache(config, dataset, prompts, observer, dry=dry, requested=True)
    report = {
        "folder": cache_folder(config),
        "manifest": manifest,
        "samples": len(dataset),
        "encoded": dataset.encoded,
        "reused": dataset.reused,
        **({"damaged": list(dataset.damaged)} if cache.verify else {}),
    }
    show_report(report, as_json=arguments.json)
    return 1 if verify and dataset.damaged else 0


_OF_SAMPLE = ("adapter", "prompt", "control", "strength", "output")
_SHORT = tuple(name for name in PreviewSection.model_fields if name not in {"prompts", "controls"})
"""Settings of `preview` that may be written without the section."""


def in_preview(arguments: Arguments) -> Arguments:
    """The same with ``seed=1`` and others of `preview` written out, as ``preview.seed=1``."""
    short, rest = arguments.split(_SHORT)
    settings = [f"preview.{name}={value}" for name, values in short.items() for value in values]
    return Arguments(rest.words, (*rest.settings, *settings))


def sample(arguments: Arguments) -> int:
    """Sample the prompts and print the images' paths; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the sampler failed.
    """
    own, rest = arguments.split(_OF_SAMPLE)
    config = in_preview(rest).config()
    config = with_prompts(config, own.get("prompt", []), own.get("control", []))
    adapter = _adapter(own["adapter"][-1], config) if "adapter" in own else None
    require_inputs(config, dataset=False)
    output = given_path(own.get("output", ["samples"])[-1], "a folder").absolute()
    (strength,) = numbers({name: values[-1] for name, values in own.items()}, "strength", 1)
    from ..data.cache.build_cache import cache_folder
    from ..data.cache.cache_file import cache_folders
    from ..inference.pipeline import sample_images

    clear_leftovers(output, *cache_folders(cache_folder(config)), as_json=arguments.json)
    for path in sample_images(config, adapter, output, strength):
        if arguments.json:
            show_json({"event": "picture", "path": path})
        else:
            show(str(path))
    return 0


def _adapter(text: str, config: RunConfig) -> Path:
    """The adapter file that a command names, or that of the best checkpoint."""
    if text != "best":
        return existing(text, "an adapter file")
    from ..training.checkpoints.checkpoint import ADAPTER_FILE
    from ..training.checkpoints.find_checkpoint import best_checkpoint

    return best_checkpoint(Path(config.output.dir) / config.output.name) / ADAPTER_FILE


def with_prompts(config: RunConfig, prompts: list[str], controls: list[str]) -> RunConfig:
    """Put the command's prompts in the place of the run file's.

    Args:
        prompts: Texts to generate; none keeps those of the run file.
        controls: Paths of control images for every prompt; none keeps those of the run file.

    Raises:
        ConfigError: When there is no prompt, or the controls do not fit the base's variant.
    """
    texts = prompts or config.preview.prompts
    if not texts:
        raise ConfigError(
            "no prompt",
            "prompt=TEXT on the command line, or preview.prompts in the run file",
            "Add prompt='an image of ...' to the command.",
        )
    changes: dict[str, object] = {"prompts": list(texts)}
    if controls:
        paths = [str(given_path(path, "a control image").absolute()) for path in controls]
        changes["controls"] = [paths for _ in texts]
    elif prompts:
        changes["controls"] = []
    preview = config.preview.model_copy(update=changes)
    changed = config.model_copy(update={"preview": preview})
    check_config(changed, "the command")
    return changed


def template(arguments: Arguments) -> int:
    """Print a run file of a family, for a goal or for a purpose; returns the exit code.

    Raises:
        InputError: When the family, the goal or the purpose is unknown.
    """
    own, _ = arguments.split(("from", "from_command"))
    if own:
        from .foreign_template import template_of

        return template_of(arguments)
    arguments.at_most(3)
    options = arguments.only(VERBS["template"].own)
    if not arguments.words:
        raise InputError(
            "no family behind the verb",
            "one of " + ", ".join(templates()),
            f"Name a family, such as `adapter-trainer template {next(iter(templates()))}`.",
        )
    family, *rest = arguments.words
    name, more = (rest or ["generate"])[0], rest[1:]
    if name in GOALS:
        text = _for_goal(family, name, (more or ["standard"])[0], options)
    elif more or options or (family in templates() and name not in templates()[family]):
        raise _no_goal(family, name, next(iter([*more, *options]), ""))
    else:
        text = run_file_template(family, name)
    text = text.rstrip("\n")
    if arguments.json:
        show_json({"family": family, "purpose": name, "run_file": text})
    else:
        show(text)
    return 0


_IMAGES = 20
"""How many images a run file of a goal is made for when nobody says."""


def _for_goal(family: str, goal: str, quality: str, options: Mapping[str, str]) -> str:
    images, vram, speed = (_whole(options, name) for name in ("images", "vram", "tflops"))
    images = _IMAGES if images is None else images
    preset = plan_preset(
        family,
        goal,
        quality,
        images=images,
        variant=options.get("variant"),
        kind=options.get("kind", "auto"),
        embedded=options.get("embedded", "false") == "true",
        gpu=Gpu(
            vram=None if vram is None else vram << 30,
            flops=None if speed is None else speed * 1e12,
        ),
    )
    word = options.get("trigger", "")
    values = {**preset.values, **({"dataset.trigger_word": word} if word else {})}
    if goal != "edit":  # whose prompts need control images, which are not known here
        embedded = values["base.path"] == "embedded"
        values["preview.prompts"] = preview_prompts(goal, word, (), embedded=embedded)
        values["preview.every"] = preset.preview_every
    title = f"A run file for the family {family}: {goal}, {quality}, for {images} images."
    return run_file_of(title, values, [each.why for each in preset.chosen])


def _whole(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None or (text.isascii() and text.isdigit() and len(text) < 10):
        return None if text is None else int(text)
    raise InputError(f"{name}={text}", "a whole number", f"Write {name}=20, or leave it out.")


def _no_goal(family: str, name: str, more: str) -> InputError:
    purposes = () if more else templates()[family]
    near = difflib.get_close_matches(name, [*GOALS, *purposes], n=1, cutoff=0.5)
    found = f"{more!r} behind {name!r}, which is not a goal" if more else f"the goal {name!r}"
    words = "one of the goals " + ", ".join(GOALS)
    words += ", or of the purposes " + ", ".join(purposes) if purposes else ""
    return InputError(found, words, f"Did you mean {near[0]}?" if near else "Name one of these.")


_CHOICES = {"kind": ("lokr", "lora", "loha"), "task": ("generate", "edit", "own")}
"""What can be chosen; the first is the default."""


def demo(arguments: Arguments) -> int:
    """Run the demonstration; returns the exit code.

    Raises:
        InputError: When a setting is unknown or none of its choices.
        RunError: When training failed, or the adapter learned or kept next to nothing.
    """
    arguments.at_most(0)
    options = arguments.only(("kind", "task", "output"))
    chosen = {name: options.get(name, choices[0]) for name, choices in _CHOICES.items()}
    for name, choices in _CHOICES.items():
        if chosen[name] not in choices:
            raise InputError(
                f"{name}={chosen[name]}",
                "one of " + ", ".join(choices),
                f"Name one of these, or leave {name} out for {choices[0]}.",
            )
    from ..demo.run import require_working, run_demo

    output = Path(options.get("output") or "demo_output").absolute()
    with watching(as_json=arguments.json) as observer:
        summary = run_demo(chosen["kind"], cast("Task", chosen["task"]), output, observer)
    if arguments.json:
        show_json(dataclasses.asdict(summary))
    else:
        for image in summary.pictures:
            show_image(output / image)
        show(learned_text(summary, output))
    require_working(summary)
    return 0


def learned_text(summary: DemoSummary, output: Path) -> str:
    """What the demonstration showed, for a person.

    Args:
        summary: Shares of right images, and paths relative to `output`.
    """
    from ..demo.run import KEPT, LEARNED

    facts = {
        "Learned": f"{summary.base_accuracy:.0%} of the images right before training, "
        f"{summary.adapter_accuracy:.0%} with the adapter ({LEARNED.text(summary)})",
        "Kept": f"{summary.base_captions_accuracy:.0%} right of what the base could do before "
        f"({KEPT.text(summary)})",
        "Trained": f"{summary.train_seconds:.0f} seconds",
        "Adapter": str(output / summary.adapter),
        "Images": ", ".join(str(output / image) for image in summary.pictures),
        "Summary": str(output / "summary.json"),
    }
    return "\n".join(f"{name + ':':<10}{fact}" for name, fact in facts.items())
