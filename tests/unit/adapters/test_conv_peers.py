"""The same factors in LyCORIS give the same output, for convolutions."""

import pytest
import torch
from fixtures.combinations import each_once
from fixtures.convolutions import Shape, adapted_conv, relative

pytest.importorskip("lycoris", reason="lycoris_lora is not installed")

TUCKER = ({"tucker": True}, {"use_tucker": True})
CASES = {
    "lora": ("lora", {}, {}),
    "lora tucker": ("lora", *TUCKER),
    "lora dora": ("lora", {"dora": True}, {"weight_decompose": True, "wd_on_out": False}),
    "loha": ("loha", {}, {}),
    "loha tucker": ("loha", *TUCKER),
    "loha dora": ("loha", {"dora": True}, {"weight_decompose": True, "wd_on_out": False}),
    "lokr": ("lokr", {}, {}),
    "lokr tucker": ("lokr", *TUCKER),
    "lokr factor": ("lokr", {"factor": 2}, {"factor": 2}),
    "lokr full": ("lokr", {"full_matrix": True}, {"full_matrix": True}),
    "lokr both": (
        "lokr",
        {"decompose_both": True, "factor": 8},
        {"decompose_both": True, "factor": 8},
    ),
    "lokr unbalanced": ("lokr", {"unbalanced": True}, {"unbalanced_factorization": True}),
    "lokr unbalanced tucker": (
        "lokr",
        {"unbalanced": True, "factor": 4, "tucker": True},
        {"unbalanced_factorization": True, "factor": 4, "use_tucker": True},
    ),
    "lokr dora": (
        "lokr",
        {"dora": True, "dora_axis": "output"},
        {"weight_decompose": True, "wd_on_out": True},
    ),
}
SHAPES = {
    "1d": Shape((3,), inputs=24, outputs=32, padding=1, dilation=2),
    "2d": Shape((3, 3), inputs=24, outputs=32, stride=2, padding=1),
    "3d": Shape((2, 3, 1), inputs=24, outputs=32, dilation=2),
    "2d point": Shape((1, 1), inputs=24, outputs=32),
}
GROUPED = Shape((3, 3), inputs=24, outputs=32, padding=1, groups=4)


def compare(case, shape):
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    kind, options, theirs = CASES[case]
    module, adapter = adapted_conv(
        shape,
        {"kind": kind, "rank": 2, "alpha": 3.0, "factor": -1, **options},
        dtype=torch.float32,
    )
    base = shape.build()
    base.load_state_dict(module[0].get_base_layer().state_dict())
    module_class = {"lora": LoConModule, "loha": LohaModule, "lokr": LokrModule}[kind]
    lycoris = module_class("layer", base, lora_dim=2, alpha=3.0, **theirs)
    factors = adapter.state().layers["0"].tensors
    names = {
        f"{name}.weight" if name.startswith("lora_") else name: tensor
        for name, tensor in factors.items()
    }
    own = dict(lycoris.named_parameters())
    # Its lengths are a plain tensor, because it makes the parameter float32 afterwards.
    own |= {"dora_scale": lycoris.dora_scale} if "dora_scale" in names else {}
    wanted = {name for name in own if "alpha" not in name}
    assert {name: tuple(tensor.shape) for name, tensor in names.items()} == {
        name: tuple(own[name].shape) for name in wanted
    }
    with torch.no_grad():
        for name, tensor in names.items():
            own[name].copy_(tensor)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2, shape.inputs, *[7] * len(shape.kernel), generator=generator)
        plain = base(x)
        lycoris.apply_to()
        assert relative(module(x), base(x)) < 1e-5
        assert relative(base(x), plain) > 0.02


@pytest.mark.parametrize(
    ("case", "shape"), each_once([case for case in CASES if "tucker" not in case], SHAPES)
)
def test_lycoris_forward_is_the_same(case, shape):
    compare(case, SHAPES[shape])


@pytest.mark.parametrize(
    ("case", "shape"), each_once([case for case in CASES if "tucker" in case], ["1d", "2d", "3d"])
)
def test_lycoris_forward_is_the_same_with_a_core(case, shape):
    compare(case, SHAPES[shape])


@pytest.mark.parametrize("case", ["lora", "lora tucker", "lora dora", "loha", "loha tucker"])
def test_lycoris_forward_is_the_same_with_groups(case):
    compare(case, GROUPED)
