"""Adapters on convolutions, and DoRA on Linears, against the dense delta in float64."""

import pytest
import torch
from fixtures.combinations import each_once, pairwise
from fixtures.convolutions import OPTIONS, Shape, adapted_conv, textbook_output, textbook_weight
from fixtures.textbook import relative
from hypothesis import given, settings
from hypothesis import strategies as st

TOLERANCE = 1e-12
AXES = ("input", "output")
WITHOUT_CORE = [name for name in OPTIONS if "tucker" not in name]
SHAPES = {
    "linear": Shape((), inputs=24, outputs=16),
    "linear without bias": Shape((), inputs=24, outputs=16, bias=False),
    "1d": Shape((3,)),
    "1d strided": Shape((4,), stride=3, padding=2),
    "2d": Shape((3, 3), padding=1),
    "2d uneven": Shape((3, 2), stride=2, padding=1, dilation=2, bias=False),
    "2d same": Shape((3, 3), padding="same", dilation=2),
    "2d reflected": Shape((3, 3), padding=2, padding_mode="reflect"),
    "3d": Shape((2, 3, 2), padding=1),
}


def draw(*size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def compare(shape, options, seed=0, batch=(2,), size=9):
    """Output, every gradient, and the weight difference."""
    module, adapter = adapted_conv(shape, {"alpha": 0.75, **options}, seed)
    axes = len(shape.kernel)
    x = draw(*batch, shape.inputs, *[size] * axes, seed=seed + 1).requires_grad_(True)
    base = module[0].get_base_layer()
    weight = textbook_weight(module, adapter)
    wanted = textbook_output(shape, x, weight, base.bias)
    found = module(x)
    assert found.shape == wanted.shape
    assert relative(found, wanted) < TOLERANCE
    g = draw(*wanted.shape, seed=seed + 2)
    leaves = [x, *adapter.parameters()]
    expected = torch.autograd.grad(wanted, leaves, g)
    # Lengths make the output blind to the factors' size, so that a gradient may nearly cancel.
    smallest = 1e-3 * max(float(reference.norm()) for reference in expected)
    for value, reference in zip(torch.autograd.grad(found, leaves, g), expected, strict=True):
        assert value.shape == reference.shape
        limit = TOLERANCE * max(float(reference.norm()), smallest)
        assert float((value - reference).norm()) <= limit
    delta = adapter.delta_weight("0")
    assert delta.shape == base.weight.shape
    assert relative(base.weight + delta, weight) < TOLERANCE
    # A check that would also pass without an adapter would prove nothing.
    assert relative(base(x), wanted) > 1e-6


@pytest.mark.parametrize(("options", "shape"), each_once(OPTIONS, list(SHAPES)[2:]))
def test_output_and_gradients_equal_the_textbook(options, shape):
    compare(SHAPES[shape], OPTIONS[options])


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        *each_once(OPTIONS, ["1d", "2d uneven", "2d reflected", "3d"]),
        *each_once(WITHOUT_CORE, list(SHAPES)[:2]),
    ],
)
def test_dora_equals_the_textbook(options, shape, axis):
    compare(SHAPES[shape], {**OPTIONS[options], "dora": True, "dora_axis": axis})


@pytest.mark.parametrize(
    ("options", "groups", "dora"),
    pairwise(["lora", "lora tucker", "loha", "loha tucker"], [2, 4], [None, *AXES]),
)
def test_groups_equal_the_textbook(options, groups, dora):
    lengths = {"dora": True, "dora_axis": dora} if dora else {}
    compare(Shape((3, 3), padding=1, groups=groups), {**OPTIONS[options], **lengths})


def test_a_convolution_of_single_channels_equals_the_textbook():
    compare(Shape((3,), inputs=6, outputs=6, groups=6), {"kind": "lora", "rank": 2})


@pytest.mark.parametrize("sizes", [(4, 64), (64, 4)])
def test_lokr_mixes_before_and_after_its_convolution(sizes):
    shape = Shape((3,), inputs=sizes[0], outputs=sizes[1])
    compare(shape, {"kind": "lokr", "factor": -1, "full_matrix": True})


@settings(max_examples=60, deadline=None)
@given(
    options=st.sampled_from(WITHOUT_CORE),
    kernel=st.lists(st.integers(1, 3), max_size=3).map(tuple),
    channels=st.tuples(st.integers(1, 12), st.integers(2, 12)),
    groups=st.sampled_from([1, 1, 2, 3]),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, 2, "valid"]),
    dilation=st.integers(1, 2),
    factor=st.sampled_from([-1, 2, 3]),
    dora=st.sampled_from([None, *AXES]),
    batch=st.sampled_from([(), (1,), (3,)]),
    seed=st.integers(0, 10**6),
)
def test_any_shape_equals_the_textbook(
    options, kernel, channels, groups, stride, padding, dilation, factor, dora, batch, seed
):
    chosen, groups = {**OPTIONS[options]}, groups if kernel else 1
    if chosen["kind"] == "lokr":
        chosen["factor"], groups = factor, 1
    else:
        chosen["rank"] = 1
    if dora:
        chosen |= {"dora": True, "dora_axis": dora}
        # A row of one number may meet its opposite, which leaves a length of mere rounding.
        channels = tuple(max(3, channel) for channel in channels)
    shape = Shape(
        kernel, channels[0] * groups, channels[1] * groups, stride, padding, dilation, groups
    )
    compare(shape, chosen, seed, batch, size=6)
