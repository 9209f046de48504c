"""The command line: ``adapter-trainer VERB [run.yaml] [key=value ...] [--json]``.

No flag for each setting: every setting of a run file can be given as ``key=value``. A verb is a
function in a module of `trainer_core.commands` that returns the exit code: 0 done, 1 the work
failed, 2 the input was wrong.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

from .commands import VERBS
from .commands.allocator import set_allocator
from .commands.arguments import Arguments, parse_arguments
from .commands.console import prepare_log, prepare_streams, show, show_error
from .errors import InputError, RunError, TrainerError
from .version import __version__

_CHATTY = ("bitsandbytes", "diffusers.quantizers.torchao", "torch.utils._pytree", "torchao")
"""Where it is said, whenever another library is loaded, what they lack for formats of weights."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words behind the program's name; None takes those of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    prepare_log()
    set_allocator(os.environ)
    for library in _CHATTY:
        logging.getLogger(library).setLevel(logging.ERROR)
    as_json = "--json" in words
    try:
        return _run(words)
    except TrainerError as error:
        show_error(error, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        stopped = RunError(
            "the command was stopped", "the work to finish", "Start it again; what is saved stays."
        )
        show_error(stopped, as_json=as_json)
        return stopped.exit_code
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter's last flush must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # The last net: what a verb did not expect of a file or folder that somebody named.
        named = f"{error.filename}: " if error.filename else ""
        refused = RunError(
            f"{named}{error.strerror or error}",
            "files and folders that the system lets this command use",
            "Check the paths of the command, their permissions and the disk.",
        )
        show_error(refused, as_json=as_json)
        return refused.exit_code


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in {"-h", "--help", "help"}:
        show(overview())
        return 0
    if words[0] in {"-V", "--version", "version"}:
        show(f"adapter-trainer {__version__}")
        return 0
    verb, arguments = parse_arguments(words, VERBS)
    if arguments.help:
        show(VERBS[verb].help)
        return 0
    return _work(verb, arguments)


def _work(verb: str, arguments: Arguments) -> int:
    try:
        module = importlib.import_module(f".commands.{VERBS[verb].module}", __package__)
        return getattr(module, verb)(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == __name__.split(".")[0]:
            raise
        raise InputError(
            f"the Python package {error.name} is not installed",
            "what the extra 'train' installs",
            'Run: pip install "adapter-trainer[train]" (from a checkout: pip install ".[train]").',
        ) from error


def overview() -> str:
    """The verbs, one line each."""
    width = max(len(name) for name in VERBS)
    lines = [f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "adapter-trainer VERB [run.yaml] [key=value ...] [--json]",
            "",
            *lines,
            "",
            "adapter-trainer VERB --help says more. key=value sets any setting of the run file,",
            "such as training.steps=500. Exit codes: 0 done, or stopped by a signal with its state",
            "saved; 1 the work failed; 2 wrong input.",
        ]
    )
