"""Runs inside ComfyUI's interpreter: imports what scripts share once, and forks for each script.

A line of the input is a JSON list: a file for what is printed, a folder to work in, a script and
its words. Each script runs as if it were started by itself with ``--cpu``; a line of the output is
its exit code.
"""

import gc
import json
import os
import runpy
import select
import sys
import threading
from pathlib import Path

SHARED = (
    *("trainer_core.adapters.attachment", "trainer_core.inference.pipeline"),
    *("trainer_core.training.run", "nodes.host.graph_family", "nodes.host.trained_text"),
)
"""Modules of the pack that most scripts import, with the libraries that these import."""


def end_with_the_tests():
    """While a script runs nothing is asked: input that can be read has been closed."""
    select.select([sys.stdin], [], [])
    os._exit(1)


def main():
    # Whatever a library prints is not an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.argv = sys.argv[:1]
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import comfy.sd
    import folder_paths
    from loaded_pack import part

    import nodes

    assert comfy.sd.load_diffusion_model
    assert nodes.common_ksampler
    for name in SHARED:
        part(name)
    # A run collects when it ends, and would look through all of this each time.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        log, folder, *words = json.loads(line)
        child = os.fork()
        if child == 0:
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            threading.Thread(target=end_with_the_tests, daemon=True).start()
            os.chdir(folder)
            # ComfyUI's node for 3D makes a folder in it when it is asked for its inputs.
            folder_paths.set_input_directory(str(Path(folder, "input")))
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
            return
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
