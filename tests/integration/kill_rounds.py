"""Run by test_kill.py in a fresh interpreter: forks warmed children and kills or signals them.

What the runs have on is a table: a new setting whose state has to survive is a row of `RUNS`.

Forking before any backward pass keeps autograd usable in the children; one interpreter that has
imported everything makes a round cost a second instead of ten.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

sys.dont_write_bytecode = True


STEPS = 8
PREVIEW = {"every": 4, "prompts": ["a red circle on blue"], "width": 64, "height": 64, "steps": 1}
VALIDATION = {"share": 0.1, "every": 3, "most": 2, "noise_levels": 1}
MEASURED = {
    "dataset": {"caption_dropout": 0.2, "validation": VALIDATION},
    "preview": PREVIEW,
    "memory": {"gradient_checkpointing": True},
}
OVERFLOW = {"kind": "lora", "dropout": 0.0, "alpha": 1e8}
"""So large a scale that the rate at which warm-up arrives drives the loss out of all numbers."""

RUNS = {
    "plain": {},
    "previews, held-out images, checkpointed blocks": MEASURED,
    "dora": {"adapter": {"kind": "lora", "factor": 8, "dora": True, "dropout": 0.1}},
    "adamw8bit": {"training": {"optimizer": {"name": "adamw8bit", "learning_rate": 1e-3}}},
    "preservation": {"dataset": {"preservation": {"share": 0.5, "count": 4, "steps": 3}}},
    "steps left out, and a return": {
        "adapter": OVERFLOW,
        "training": {
            "batch_size": 1,
            "gradient_accumulation_steps": 1,
            "checkpoint_every": 2,
            "schedule": {"name": "constant", "warmup_steps": 8},
            "optimizer": {"learning_rate": 10.0},
            "recovery": {"skips": 1, "returns": 2, "rate_factor": 0.001},
        },
    },
    # Masks, averages, validation, previews and learned weights, and all of the above at once.
    "everything": None,
    "everything, prodigy": {
        "training": {"optimizer": {"name": "prodigy", "learning_rate": 1.0}},
    },
}
"""What a run has on besides the ledger, accumulation, dropout of captions and of the adapter's
inputs. Those of a name that begins with ``everything`` are beside what `everything` has."""


def main(arguments):
    work, cache, rounds, seed = Path(arguments[0]), Path(arguments[1]), *map(int, arguments[2:4])
    name, signals = arguments[4], arguments[5]
    from everything import everything, masked_images
    from runs import merge, run_config

    from trainer_core.training.encode_dataset import prepare
    from trainer_core.training.observer import SilentObserver
    from trainer_core.training.processes import SingleProcess

    torch.set_num_threads(1)
    on = RUNS[name] or {}
    if name.startswith("everything"):
        on = everything(masked_images(work / "images"), **on)
    training = {"steps": STEPS, "checkpoint_every": 1, "keep_checkpoints": 2}
    settings = merge({"training": training}, on)

    def config(output, **values):
        return run_config(output, cache, **merge(settings, values))

    # Encodes the dataset and imports Diffusers and PEFT once, in the parent.
    data = prepare(config(work), SilentObserver(), SingleProcess(torch.device("cpu")))
    data.family.load_transformer(data.location, torch.float32, torch.device("cpu"))
    started = time.perf_counter()
    if wait(fork_run(config(work / "reference"))) != 0:
        raise SystemExit("the reference run failed")
    step = (time.perf_counter() - started) / STEPS
    moments = random.Random(seed)
    report = []
    for number in range(rounds):
        output = work / f"round{number}"
        child = fork_run(config(output), as_command=signals != "SIGKILL")
        made, part = divmod(moments.uniform(0.0, STEPS), 1.0)
        wait_until(made, child, output)
        time.sleep(part * step)
        for number_of in signals.split(","):
            # One that has ended is still there until it is waited for.
            os.kill(child, getattr(signal, number_of))
            time.sleep(moments.uniform(0.0, 0.1) * STEPS * step)
        ended = wait(child)
        before = sorted(p.name for p in output.glob("run/v*/checkpoints/*"))
        left = [p.name for p in output.rglob(".writing-*")]
        begun = (output / "run").exists()
        code = wait(fork_run(config(output, resume="auto")))
        seen = {"at_kill": before, "left": left, "begun": begun, "ended": ended}
        report.append({"round": number, **seen, "exit": code})
    sys.stdout.write(json.dumps(report) + "\n")


def wait_until(made, child, output):
    """Wait until a run has recorded so many steps, or has ended: the machine may be busy."""
    while steps_of(output) < made:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(0.001)


def steps_of(output):
    """How many steps a run has recorded."""
    return sum(file.read_bytes().count(b"\n") for file in output.glob("run/v*/metrics.jsonl"))


def fork_run(config, as_command=False):
    """Train in a child; as the command it hears signals, and has the command's exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if as_command:
                code = run_command(config)
            else:
                from trainer_core.training import train

                train(config)
                code = 0
        finally:
            os._exit(code)
    return child


def run_command(config):
    from trainer_core.cli import main as command
    from trainer_core.config.reading import dump_config

    folder = Path(config.output.dir)
    folder.mkdir(parents=True, exist_ok=True)
    run_file = folder / "run.yaml"
    run_file.write_text(dump_config(config))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return command(["train", str(run_file), "--json"])


def wait(child):
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main(sys.argv[1:])
