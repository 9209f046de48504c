"""A step asks the device once, uploads nothing that it waits for, and gives back what it takes.

Only a pretended device counts what it is asked.
"""

import pytest
from runs import run_config

from tests.fixtures.combinations import each_once, pairwise, rarely
from tests.fixtures.pretend_cuda import runtime
from tests.gpu.memory import PRETENDED
from trainer_core.quantization.formats import FORMATS
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver, StepDone
from trainer_core.training.optimizers.registry import OPTIMIZERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not PRETENDED, reason="only a pretended device counts"),
]

KINDS = {
    "lora": {"kind": "lora"},
    "dora": {"kind": "lora", "dora": True},
    "loha": {"kind": "loha"},
    "lokr": {"kind": "lokr"},
    "oft": {"kind": "oft"},
}
STORED = ["dense", *FORMATS, *(f"{name} 8bit" for name, each in FORMATS.items() if each.eight_bit)]
SWAPS = {
    "resident": {},
    "pinned": {"blocks_to_swap": 5, "master": "pinned"},
    "pageable": {"blocks_to_swap": 3, "master": "pageable", "swap_slots": 1},
    "inputs": {"checkpoint_inputs": "ram"},
}
# Bitsandbytes brings kernels of its own for CUDA.
OWN = [name for name, each in OPTIMIZERS.items() if each.package != "bitsandbytes"]
READS = {"prodigy": 999, "prodigy_schedule_free": 3}  # how far it has come, of each factor


class Counting(SilentObserver):
    """Counts at the end of each step, and what the device has then."""

    def __init__(self):
        self.counts, self.allocated = [], []

    def notify(self, event):
        if isinstance(event, StepDone):
            self.counts.append(runtime.counts())
            self.allocated.append(runtime.memory().allocated)


def measured(folder, cache, kind="lora", stored="dense", swap="resident", optimizer="adamw"):
    """What the third and fourth of five steps ask of the device, and bytes after each."""
    memory = {"device": "cuda", "gradient_checkpointing": True, "plan": "off"}
    stored, _, compute = stored.partition(" ")
    memory |= {"base_format": stored, "compute": compute or "dense"}
    config = run_config(
        folder,
        cache,
        memory=memory | SWAPS[swap],
        adapter={"dropout": 0.0, "rank": 2, **KINDS[kind]},
        training={"steps": 5, "batch_size": 1, "optimizer": {"name": optimizer}},
    )
    observer = Counting()
    assert train(config, observer).status == "done"
    steps = [b - a for a, b in zip(observer.counts, observer.counts[1:], strict=False)]
    return steps[1:3], observer.allocated[1:4]


@pytest.mark.parametrize(
    ("kind", "stored", "swap", "optimizer"),
    [
        *each_once(KINDS, STORED, SWAPS, ["adamw", "adamw8bit"]),
        *rarely(pairwise(KINDS, STORED, SWAPS, OWN)),
    ],
)
def test_a_step_asks_the_device_once(tmp_path, cache, kind, stored, swap, optimizer):
    steps, allocated = measured(tmp_path, cache, kind, stored, swap, optimizer)
    for each in steps:
        assert each.uploads == 0
        assert 1 <= each.reads <= READS.get(optimizer, 1)
    assert len(set(allocated)) == 1
