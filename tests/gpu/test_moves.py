"""The base's weights move between the CPU and CUDA at every point of a training."""

import pytest
import torch
from fixtures.combinations import pairwise
from fixtures.quantized_bases import INPUTS, make_dense, make_quantized

from tests.fixtures.moved_weights import KINDS, POINTS, bases, make_module
from tests.fixtures.small_module import DORA, attached
from tests.gpu.memory import relative
from trainer_core.adapters.delta_norms import weight_norms

pytestmark = pytest.mark.gpu

DEVICE, HOST = torch.device("cuda"), torch.device("cpu")
BF16_TOLERANCE = 2e-2
each_kind = pytest.mark.parametrize("options", KINDS)
each_axis = pytest.mark.parametrize("dora", DORA)


def place(layers, device):
    """Move the frozen weights alone, as swapping blocks does."""
    for layer in layers:
        for parameter in layer.parameters():
            parameter.data = parameter.data.to(device)


def away_and_back(module):
    place(bases(module), HOST)
    place(bases(module), DEVICE)


def all_away_and_back(module):
    module.to(HOST)
    module.to(DEVICE)


def train(options, device, move=None, point=None, start=None):
    """Three steps; `start` is where the adapter is attached, before the weights alone move on."""

    def reach(here):
        if move is not None and here == point:
            move(module)

    module = make_module().to(start or device)
    adapter = attached(module, options)
    place(bases(module), device)
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    outputs = []
    reach(POINTS[0])
    for _ in range(3):
        x = torch.randn(5, 24, generator=generator).to(device).requires_grad_(True)
        y = module(x)
        assert y.device.type == device.type
        reach(POINTS[1])
        y.square().mean().backward()
        outputs += [y.detach(), x.grad]
        assert all(p.grad.device == p.device for p in adapter.parameters())
        optimizer.step()
        optimizer.zero_grad()
        reach(POINTS[2])
    reach(POINTS[3])
    adapter.detach()
    trained = [parameter.detach() for parameter in adapter.parameters()]
    return [*outputs, *trained, *(parameter.detach() for parameter in module.parameters())]


def assert_close(found, expected, tolerance=1e-4):
    for value, reference in zip(found, expected, strict=True):
        assert relative(value, reference) < tolerance


@pytest.mark.parametrize(
    ("options", "dora", "move", "point"),
    pairwise(KINDS, DORA, [away_and_back, all_away_and_back], POINTS),
)
def test_a_training_is_the_same_wherever_the_weights_move(options, dora, move, point):
    options = {**options, **dora}
    assert_close(train(options, DEVICE, move, point), train(options, HOST))


@each_axis
@each_kind
def test_an_adapter_may_stay_where_it_was_attached(options, dora):
    """Lengths and factors on the CPU, the weight on CUDA: what LyCORIS stumbled over."""
    options = {**options, **dora}
    assert_close(train(options, DEVICE, start=HOST), train(options, HOST))
    assert_close(train(options, HOST, start=DEVICE), train(options, HOST))


@each_axis
@each_kind
def test_a_weight_that_stays_away_on_the_way_back_is_read_where_it_is(options, dora):
    results = []
    for away in (False, True):
        module = make_module().to(DEVICE)
        adapter = attached(module, {**options, **dora})
        x = torch.randn(5, 24, generator=torch.Generator().manual_seed(3)).to(DEVICE)
        y = module(x.requires_grad_(True))
        if away:
            place(bases(module), HOST)
        results.append(torch.autograd.grad(y.square().sum(), [x, *adapter.parameters()]))
        place(bases(module), DEVICE)
        assert relative(module(x), y) < 1e-6
    assert_close(results[1], results[0])


def test_the_norms_of_weights_in_ram_are_taken_on_the_device(monkeypatch):
    norm, devices = torch.linalg.vector_norm, []

    def noted(weight, **options):
        devices.append(weight.device.type)
        return norm(weight, **options)

    module = make_module().to(DEVICE)
    adapter = attached(module, KINDS[0])
    wanted = weight_norms(adapter)
    place(bases(module), HOST)
    monkeypatch.setattr(torch.linalg, "vector_norm", noted)
    assert weight_norms(adapter) == pytest.approx(wanted, rel=1e-6)
    assert devices == ["cuda", "cuda"]


@each_axis
def test_merged_weights_may_move(dora):
    module = make_module().to(DEVICE)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    adapter = attached(module, {**KINDS[0], **dora})
    adapter.merge()
    module.to(HOST)
    adapter.detach()
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert parameter.device == HOST
        assert torch.equal(parameter, value.cpu())


def quantized_pass(make, name, options, away=False):
    """Output and gradients of a layer, and its output again; it may be away between the passes."""
    module = make(name, torch.bfloat16).to(DEVICE)
    adapter = attached(module, options)
    x = torch.randn(4, 5, INPUTS, generator=torch.Generator().manual_seed(3))
    x = x.to(DEVICE, torch.bfloat16).requires_grad_(True)
    y = module(x)
    if away:
        module[0].get_base_layer().to(HOST).to(DEVICE)
    grads = torch.autograd.grad(y.float().square().mean(), [x, *adapter.parameters()])
    return [y, *grads, module(x)]


@pytest.mark.parametrize(
    ("name", "options", "dora"),
    pairwise(
        ["bnb_nf4", "bnb_nf4_nested", "ao_int8", "diffusers_fp8"], KINDS[:1] + KINDS[2:], DORA
    ),
)
def test_a_quantized_layer_computes_with_its_numbers(name, options, dora):
    found, expected = (
        quantized_pass(make, name, {**options, **dora}) for make in (make_quantized, make_dense)
    )
    assert_close(found, expected, 2 * BF16_TOLERANCE)
    assert {each.device.type for each in found} == {"cuda"}
