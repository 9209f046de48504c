"""Runs in children that kill, or signal, themselves at their n-th file event.

Names come and go at file events alone, so that deaths at other events leave other states.
"""

import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer_core.cli import main
from trainer_core.config import RunConfig
from trainer_core.config.read_run_file import dump_config
from trainer_core.counters import counter_seed
from trainer_core.training import train

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
SEED = 20261126
_NUMBERS = re.compile(r"(?<=\.writing-)[0-9a-f]+(-\d+-\d+-[0-9a-f]+-)?")
"""Of a process and a moment, in names of files."""


class FileEvents:
    """Counts what changes a folder, and acts at some of the events.

    Args:
        folder: Below which events count.
        actions: The number of an event (from 1) to what is done right before it happens.

    Attributes:
        seen: The events, each with its path below the folder, without what differs by process.
    """

    def __init__(self, folder: Path, actions: dict[int, Callable[[], object]]) -> None:
        self.folder, self.actions = f"{folder}{os.sep}", actions
        self.seen: list[str] = []

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in CHANGES:
            return
        place = arguments[0]
        path = os.fsdecode(place) if isinstance(place, str | bytes | os.PathLike) else ""
        # A thread of TensorBoard's writes its file now and then.
        if path.startswith(self.folder) and "tfevents" not in path:
            below = _NUMBERS.sub("", path.removeprefix(self.folder))
            self.seen.append(f"{event} {below}")
            self.actions.get(len(self.seen), lambda: None)()


def in_child(work: Callable[[], int], folder: Path, *signals: tuple[int, int]) -> tuple[int, list]:
    """Do something in a child process that sends itself signals.

    Args:
        work: What is done; gives the exit code.
        folder: Below which file events count.
        signals: Numbers of signals, each with the number of the event at which it is sent.

    Returns:
        The child's exit code, negative where a signal has ended it, and its file events.
    """
    sys.stdout.flush()
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(heard)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            # The threads of the parent are not in this process.
            torch.set_num_threads(1)

            def act(number: int) -> None:
                tell()
                os.kill(os.getpid(), number)

            def tell() -> None:
                os.write(told, json.dumps(events.seen).encode() + b"\n")

            events = FileEvents(folder, {at: (lambda n=n: act(n)) for n, at in signals})
            sys.addaudithook(events.hear)
            code = work()
            tell()
        except BaseException:  # noqa: BLE001 - a child tells of everything
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(told)
    with os.fdopen(heard) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(lines[-1]) if lines else []


def trained(config: RunConfig) -> int:
    """Train as the library does."""
    train(config)
    return 0


def commanded(config: RunConfig) -> int:
    """Train as the command does, which hears signals and has the command's exit code."""
    folder = Path(config.output.dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(dump_config(config))
    return main(["train", str(folder / "run.yaml"), "--json"])


def spread(events: Sequence[str], count: int, *name: str) -> list[int]:
    """So many numbers of events over a whole course: one drawn in each of as many equal parts."""
    bounds = [len(events) * part // count for part in range(count + 1)]
    return [
        1 + low + counter_seed(SEED, *name, str(place)) % (high - low)
        for place, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
