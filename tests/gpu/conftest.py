import gc

import pytest
import torch

from tests.fixtures.pretend_cuda import runtime
from tests.gpu.memory import PRETENDED


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for all runs: the encoders are loaded once for each precision."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _watched(monkeypatch):
    """On a pretended device inputs of tiny blocks are worth RAM; streams and pins are watched."""
    if not PRETENDED:
        yield
        return
    monkeypatch.setattr("trainer_core.offload.checkpointed_blocks.WORTH", 1)
    pinned = runtime.pinned_bytes()
    yield
    gc.collect()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    assert runtime.faults() == []
    assert runtime.pinned_bytes() <= pinned
