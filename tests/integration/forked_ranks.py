"""Runs a program in two processes that share their imports: forked_ranks.py PROGRAM WORDS.

Each gets the variables that torchrun gives it, for half of the time that torchrun takes.
"""

import os
import runpy
import sys
import traceback

from torch.distributed import TCPStore

from trainer_core.training import run

RANKS = 2


def main() -> int:
    """Fork, wait, and give 1 where one fails, which ends the other."""
    assert run
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
    }
    children = set()
    for rank in map(str, range(RANKS)):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
            sys.argv = sys.argv[1:]
            _run(sys.argv[0])
        children.add(child)
    while children:
        ended, status = os.wait()
        children.remove(ended)
        if status:
            for child in children:
                os.kill(child, 9)
            return 1
    return 0


def _run(program: str) -> None:
    """Run it, and end without what ends the store, whose thread is the parent's."""
    code = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - the test shows it, whatever it is
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # As in the children, the store is not waited for.
    os._exit(main())
