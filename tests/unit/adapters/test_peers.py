"""The same factors in PEFT and in LyCORIS give the same result."""

import pytest
import torch
from fixtures.combinations import each_once
from fixtures.convolutions import Shape, adapted_conv
from fixtures.tables import table
from fixtures.textbook import relative
from peft import LoHaConfig, LoKrConfig, LoraConfig, inject_adapter_in_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig


def make_module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))


def make_adapter(**options):
    module = make_module()
    adapter = attach(module, AdapterConfig(**{"rank": 2, "factor": -1, **options}))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module, adapter


INPUT = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))

PEFT = {"lora": LoraConfig, "loha": LoHaConfig, "lokr": LoKrConfig}
PEFT_CASES = table(__file__, "peft")


@pytest.mark.parametrize("case", PEFT_CASES)
def test_peft_reads_our_factors_to_the_same_forward(case):
    options, theirs = PEFT_CASES[case]
    module, adapter = make_adapter(**options)
    base = make_module()
    plain = base(INPUT)
    ours = get_peft_model_state_dict(module, adapter_name="default")
    assert len(ours) == len(adapter.parameters())
    inject_adapter_in_model(PEFT[options["kind"]](target_modules=["0", "2"], **theirs), base)
    result = set_peft_model_state_dict(base, ours)
    assert not result.unexpected_keys
    with torch.no_grad():
        assert relative(module(INPUT), base(INPUT)) < 1e-6
        assert relative(base(INPUT), plain) > 0.1
    for name in adapter.names:
        theirs = base.get_submodule(name).get_delta_weight("default")
        assert relative(adapter.delta_weight(name), theirs) < 1e-6


def test_peft_scales_whole_lokr_factors_where_lycoris_and_comfyui_do_not():
    """The reason for a rule of our own: PEFT's delta is alpha / r times ours."""
    module, adapter = make_adapter(kind="lokr", alpha=1.0, factor=4, full_matrix=True)
    base = make_module()
    config = LoKrConfig(r=24, alpha=6, decompose_factor=4, target_modules=["0"])
    inject_adapter_in_model(config, base)
    ours = get_peft_model_state_dict(module, adapter_name="default")
    set_peft_model_state_dict(base, {k: v for k, v in ours.items() if k.startswith("0.")})
    theirs = base[0].get_delta_weight("default")
    torch.testing.assert_close(theirs, adapter.delta_weight("0") * 0.25)


LYCORIS = table(__file__, "lycoris")
SHAPES = {
    "1d": Shape((3,), inputs=24, outputs=32, padding=1, dilation=2),
    "2d": Shape((3, 3), inputs=24, outputs=32, stride=2, padding=1),
    "3d": Shape((2, 3, 1), inputs=24, outputs=32, dilation=2),
    "2d point": Shape((1, 1), inputs=24, outputs=32),
    "2d grouped": Shape((3, 3), inputs=24, outputs=32, padding=1, groups=4),
    "linear": Shape((), inputs=24, outputs=32),
}
PLAIN = [case for case in LYCORIS if "tucker" not in case]
GROUPED = ("lora", "lora tucker", "lora dora", "loha", "loha tucker")


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        *each_once(PLAIN, ["linear"]),
        *each_once(PLAIN, ["1d", "2d", "3d", "2d point"]),
        *each_once([case for case in LYCORIS if "tucker" in case], ["1d", "2d", "3d"]),
        *each_once(GROUPED, ["2d grouped"]),
    ],
)
def test_lycoris_computes_the_same_with_our_factors(case, shape):
    pytest.importorskip("lycoris", reason="lycoris_lora is not installed")
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    (kind, options, theirs), shape = LYCORIS[case], SHAPES[shape]
    settings = {"kind": kind, "rank": 2, "alpha": 3.0, "factor": -1, **options}
    module, adapter = adapted_conv(shape, settings, dtype=torch.float32)
    base = shape.build()
    base.load_state_dict(module[0].get_base_layer().state_dict())
    module_class = {"lora": LoConModule, "loha": LohaModule, "lokr": LokrModule}[kind]
    lycoris = module_class("layer", base, lora_dim=2, alpha=3.0, **theirs)
    tensors = adapter.state().layers["0"].tensors
    names = {f"{n}.weight" if n.startswith("lora_") else n: each for n, each in tensors.items()}
    own = dict(lycoris.named_parameters())
    # Its lengths are a plain tensor, because it makes the parameter float32 afterwards.
    own |= {"dora_scale": lycoris.dora_scale} if "dora_scale" in names else {}
    assert {name: tuple(tensor.shape) for name, tensor in names.items()} == {
        name: tuple(tensor.shape) for name, tensor in own.items() if "alpha" not in name
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
