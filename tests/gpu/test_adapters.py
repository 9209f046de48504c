"""An adapter computes on CUDA what it computes on the CPU."""

import pytest
import torch

from tests.fixtures import shared_block
from tests.fixtures.shared_block import OPTIONS, assert_same, everything, group, make, shares
from tests.fixtures.small_module import config, each_kind, make_input, make_module, randomize
from tests.gpu.memory import relative
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.families.registry import get_family

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
BF16_TOLERANCE = 2e-2
FAMILY = get_family("qwen_image")
SIZES = {"lora": 0.2, "loha": 0.45, "lokr": 0.35}  # deltas of a like size on the embedded base


def attached(kind, device="cpu", dtype=torch.float32):
    module = make_module(dtype).to(device)
    adapter = attach(module, config(kind, alpha=3.0))
    randomize(adapter)
    return module, adapter


@each_kind
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, BF16_TOLERANCE)]
)
def test_forward_and_gradients_equal_the_cpus(kind, dtype, tolerance):
    module, adapter = attached(kind)
    expected = module(make_input())
    expected.square().mean().backward()
    on_device, device_adapter = attached(kind, DEVICE, dtype)
    assert {parameter.device.type for parameter in device_adapter.parameters()} == {"cuda"}
    found = on_device(make_input(dtype).to(DEVICE))
    found.float().square().mean().backward()
    assert found.dtype == dtype
    assert relative(found, expected) < tolerance
    for mine, reference in zip(device_adapter.parameters(), adapter.parameters(), strict=True):
        assert mine.grad.dtype == torch.float32
        assert relative(mine.grad, reference.grad) < 3 * tolerance
    base = make_module()(make_input())
    assert relative(found, base) > 5 * BF16_TOLERANCE, "the adapter changes too little to tell"


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_zero_strength_zero_and_unmerging_are_bit_identical(kind, dtype):
    module, x = make_module(dtype).to(DEVICE), make_input(dtype).to(DEVICE)
    base = module(x)
    weight = module[0].weight.detach().clone()
    adapter = attach(module, config(kind))
    assert torch.equal(module(x), base)
    randomize(adapter)
    trained = module(x)
    assert not torch.equal(trained, base)
    adapter.strength = 0.0
    assert torch.equal(module(x), base)
    adapter.strength = 1.0
    adapter.merge()
    assert relative(module(x), trained) < (BF16_TOLERANCE if dtype == torch.bfloat16 else 1e-5)
    adapter.unmerge()
    assert torch.equal(module(x), trained)
    adapter.detach()
    assert torch.equal(module[0].weight, weight)
    assert torch.equal(module(x), base)


def velocity(kind, device, dtype):
    """The embedded base's velocity, with a random adapter unless the kind is None."""
    location = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False)
    transformer = FAMILY.load_transformer(location, dtype, device)
    encoders = FAMILY.load_encoders(location, torch.float32, torch.device("cpu"))
    if kind:
        adapter = attach(
            transformer,
            AdapterConfig(kind=kind, rank=2, alpha=1.0),
            presets=FAMILY.layers.presets,
            unused=FAMILY.layers.unused(transformer),
        )
        randomize(adapter, size=SIZES[kind])
    generator = torch.Generator().manual_seed(3)
    shape = FAMILY.latent_shape(location, 64, 64)
    noisy = torch.randn(2, *shape, generator=generator).to(device)
    sigma = torch.tensor([0.3, 0.8], device=device)
    texts = [encoders.encode_text(text, []) for text in ("a red circle on blue", "")]
    with torch.no_grad():
        return FAMILY.prediction.predict(transformer, noisy, sigma, texts, (), 1.0)


@each_kind
def test_the_embedded_base_with_an_adapter_predicts_the_cpus_velocity(kind):
    cpu = torch.device("cpu")
    expected = velocity(kind, cpu, torch.float32)
    assert relative(velocity(kind, DEVICE, torch.float32), expected) < 1e-3
    assert relative(velocity(kind, DEVICE, torch.bfloat16), expected) < 2 * BF16_TOLERANCE
    assert relative(velocity(None, cpu, torch.float32), expected) > 5 * BF16_TOLERANCE


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_and_gradients_are_those_of_separate_layers(name):
    found = []
    for shared in (True, False):
        block, adapter = make(OPTIONS[name], shared)
        block.to("cuda")
        x = shared_block.make_input().detach().to("cuda").requires_grad_(True)
        found.append([each.cpu() for each in everything(block, adapter, x)])
        if shared:
            assert "dora" in name or all(map(shares, block(x)))
            assert group(adapter).waits_for == ()
    assert_same(*found)
