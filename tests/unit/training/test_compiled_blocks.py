"""Compiled blocks: few graphs, the numbers of blocks that are not compiled, and nothing left."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.fixtures.flux_base import make_flux_transformer
from tests.fixtures.qwen_base import make_qwen_transformer
from tests.fixtures.swapped_blocks import Trained
from tests.fixtures.tables import table
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.registry import get_family
from trainer_core.offload.block_selection import repeated_blocks
from trainer_core.training.step.compiled_blocks import compiled

CPU = torch.device("cpu")
GRAPHS = {"qwen_image": 3, "flux": 4}
"""qwen_image: the first block, whose input learns nothing, the last, whose text goes nowhere, and
the others. flux: two for each of its two lists."""
TO_Q = r"transformer_blocks\..*\.to_q"
ADAPTERS = table(__file__, "compiled adapters")
SWAPPED = set(ADAPTERS) - {"exact delta"}
ONE_LAYER = {"kind": "lora", "targets": [TO_Q]}
SKIPPED = ONE_LAYER | {"module_dropout": 0.5}


class Around:
    """Compiles the blocks of the denoiser that it is called with.

    Attributes:
        graphs: How many graphs there are.
        lines: What was told.
    """

    def __init__(self, family, backend="eager"):
        self._family = get_family(family)
        self._backend = CompileCounterWithBackend(backend) if type(backend) is str else backend
        self.lines = []

    @property
    def graphs(self):
        return self._backend.frame_count

    @contextmanager
    def __call__(self, transformer):
        blocks = repeated_blocks(transformer, self._family.layers.repeated_blocks)
        with compiled(blocks, CPU, self.lines.append, self._backend):
            yield
        assert not any("forward" in vars(block) for block in blocks)


def difference(found, expected):
    norms = [(x - y).norm() / y.norm() for x, y in zip(found, expected, strict=True)]
    return float(max(norms))


def test_checkpointed_swapped_blocks_with_dropouts_and_previews_have_the_same_bits():
    adapter = {"kind": "lora", "dropout": 0.2, "rank_dropout": 0.2}
    options = ("qwen_image", adapter | {"targets": [TO_Q]})
    plain, around = Trained(*options, previews=True), Around("qwen_image")
    found = Trained(*options, previews=True, count=4, slots=1, around=around)
    assert found.equals(plain)
    # Of five blocks that are called four times each: as the first, and as all others.
    assert (around.graphs, around.lines) == (2, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "adapter"),
    # An adapter knows no family: each with one of them, and one with each family.
    [*(("flux", each) for each in ADAPTERS), ("qwen_image", "lora")],
)
def test_every_adapter_has_few_graphs(family, adapter):
    plain = Trained(family, ADAPTERS[adapter])
    around = Around(family)
    resident = Trained(family, ADAPTERS[adapter], around=around)
    assert (around.graphs, around.lines) == (GRAPHS[family], [])
    # Layers add their gradients to a shared input one by one.
    assert difference(resident.weights, plain.weights) < 1e-4
    # Slots know no adapter.
    for slots in (1, 2) if adapter == "lora" else (1,) if adapter in SWAPPED else ():
        around = Around(family)
        swapped = Trained(family, ADAPTERS[adapter], count=5, slots=slots, around=around)
        assert (around.graphs, around.lines) == (GRAPHS[family], [])
        assert swapped.equals(resident)


SIZES = [(8, 8, 5, 5), (8, 12, 7, 7), (12, 8, 9, 9), (8, 8, 6, 6), (16, 16, 12, 12), (8, 8, 5, 5)]
MASKED = [(8, 8, 5, 7), (12, 8, 8, 3)]


def passes(family, sizes, around=nullcontext, each=lambda: None, prepare=lambda transformer: None):
    """Outputs and gradients of batches of two of different sizes; ``each`` is called after each."""
    known = get_family(family)
    make = {"qwen_image": make_qwen_transformer, "flux": make_flux_transformer}[family]
    transformer = make()
    prepare(transformer)
    adapter = attach(transformer, AdapterConfig(kind="lora", rank=2, targets=[TO_Q]), seed=1)
    with torch.no_grad():
        for factor in adapter.train().parameters():
            factor += 0.1
    seen = []
    with around(transformer):
        for height, width, *texts in sizes:
            generator = torch.Generator().manual_seed(height + width)
            noisy = torch.randn(2, 4, height, width, generator=generator)
            given = [{"text_embeddings": torch.randn(n, 32, generator=generator)} for n in texts]
            if family == "flux":
                given = [one | {"pooled_text": torch.ones(24)} for one in given]
            y = known.prediction.predict(
                transformer, noisy, torch.tensor([0.4, 0.7]), given, [], 2.0
            )
            seen += [y.detach(), *torch.autograd.grad(y.square().mean(), adapter.parameters())]
            each()
    return seen


@pytest.mark.parametrize(
    ("family", "sizes", "graphs"),
    [
        ("qwen_image", SIZES[:3], [2, 4, 4]),
        pytest.param(
            "qwen_image", SIZES + MASKED, [2] + [4] * 5 + [6, 6], marks=pytest.mark.exhaustive
        ),
        pytest.param("flux", SIZES, [4] + [8] * 5, marks=pytest.mark.exhaustive),
    ],
)
def test_two_graphs_are_made_for_any_number_of_sizes(family, sizes, graphs):
    around, seen = Around(family), []
    found = passes(family, sizes, around, lambda: seen.append(around.graphs))
    assert difference(found, passes(family, sizes)) < 1e-4
    assert (seen, around.lines) == (graphs, [])


class Breaks:
    """A backend that fails after some graphs."""

    def __init__(self, after):
        self.frame_count, self._after = 0, after

    def __call__(self, graph, inputs):
        self.frame_count += 1
        if self.frame_count > self._after:
            raise OSError("no room for a kernel\nand more")
        return graph.forward


@pytest.mark.parametrize("after", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_what_cannot_be_compiled_is_told_once_and_goes_on(after):
    options, around = ("qwen_image", ONE_LAYER), Around("qwen_image", Breaks(after))
    assert Trained(*options, steps=1, around=around).equals(Trained(*options, steps=1))
    (line,) = around.lines
    assert "(no room for a kernel);" in line
    assert around.graphs == after + 1


def test_what_cannot_be_traced_goes_on_with_the_same_random_numbers():
    options, around = ("qwen_image", SKIPPED), Around("qwen_image")
    assert Trained(*options, steps=1, around=around).equals(Trained(*options, steps=1))
    assert len(around.lines) == 1
