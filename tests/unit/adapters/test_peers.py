"""The same factors in PEFT and in LyCORIS give the same result."""

import pytest
import torch
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


def relative(value, reference):
    return float((value - reference).norm() / reference.norm())


INPUT = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))

PEFT_CASES = {
    "lora": ({"kind": "lora", "alpha": 3.0}, lambda t: LoraConfig(r=2, lora_alpha=3, **t)),
    "loha": ({"kind": "loha", "alpha": 3.0}, lambda t: LoHaConfig(r=2, alpha=3, **t)),
    "lokr": (
        {"kind": "lokr", "alpha": 3.0, "factor": 2},
        lambda t: LoKrConfig(r=2, alpha=3, decompose_factor=2, **t),
    ),
    "lokr both": (
        {"kind": "lokr", "alpha": 3.0, "factor": -1, "decompose_both": True},
        lambda t: LoKrConfig(r=2, alpha=3, decompose_factor=-1, decompose_both=True, **t),
    ),
}


@pytest.mark.parametrize("case", PEFT_CASES)
def test_peft_reads_our_factors_to_the_same_forward(case):
    options, make_config = PEFT_CASES[case]
    module, adapter = make_adapter(**options)
    base = make_module()
    plain = base(INPUT)
    ours = get_peft_model_state_dict(module, adapter_name="default")
    assert len(ours) == len(adapter.parameters())
    inject_adapter_in_model(make_config({"target_modules": ["0", "2"]}), base)
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


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_layers_are_recognised_by_peft(kind):
    from peft.tuners.tuners_utils import BaseTunerLayer

    module, adapter = make_adapter(kind=kind)
    assert isinstance(module[0], BaseTunerLayer)
    base = module[0].get_base_layer()(INPUT)
    with_adapter = module[0](INPUT)
    for part in module.modules():
        if isinstance(part, BaseTunerLayer):
            part.enable_adapters(False)
    assert torch.equal(module[0](INPUT), base)
    for part in module.modules():
        if isinstance(part, BaseTunerLayer):
            part.enable_adapters(True)
    assert torch.equal(module[0](INPUT), with_adapter)
    module[0].set_scale("default", 0.5)
    torch.testing.assert_close(module[0](INPUT) - base, (with_adapter - base) * 0.5)
    module[0].set_scale("default", 1.0)
    assert torch.equal(module[0](INPUT), with_adapter)
    assert all(parameter.requires_grad for parameter in adapter.parameters())


LYCORIS_CASES = [
    ("lora", {"alpha": 3.0}, {}),
    ("loha", {"alpha": 3.0}, {}),
    ("lokr", {"alpha": 3.0}, {}),
    ("lokr", {"alpha": 3.0, "factor": 2}, {"factor": 2}),
    ("lokr", {"alpha": 3.0, "factor": 16}, {"factor": 16}),
    ("lokr", {"alpha": 3.0, "factor": 5}, {"factor": 5}),
    ("lokr", {"alpha": 3.0, "full_matrix": True}, {"full_matrix": True}),
    ("lokr", {"alpha": 3.0, "decompose_both": True, "factor": 4}, {"decompose_both": True}),
    ("lokr", {"alpha": 3.0, "unbalanced": True}, {"unbalanced_factorization": True}),
    ("lokr", {"alpha": 3.0, "unbalanced": True, "factor": 2}, {"unbalanced_factorization": True}),
    (
        "lokr",
        {"alpha": 3.0, "unbalanced": True, "full_matrix": True},
        {"unbalanced_factorization": True, "full_matrix": True},
    ),
]


@pytest.mark.parametrize(("kind", "options", "theirs"), LYCORIS_CASES)
def test_lycoris_forward_is_the_same_with_our_factors(kind, options, theirs):
    pytest.importorskip("lycoris", reason="lycoris_lora is not installed")
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    module, adapter = make_adapter(kind=kind, **options)
    base = make_module()[0]
    module_class = {"lora": LoConModule, "loha": LohaModule, "lokr": LokrModule}[kind]
    if kind == "lokr":
        theirs = {"factor": options.get("factor", -1), **theirs}
    lycoris = module_class("layer", base, lora_dim=2, alpha=3.0, **theirs)
    tensors = adapter.state().layers["0"].tensors
    names = {f"{name}.weight" if kind == "lora" else name: t for name, t in tensors.items()}
    own = dict(lycoris.named_parameters())
    assert {n: tuple(t.shape) for n, t in names.items()} == {
        n: tuple(own[n].shape)
        for n in own
        if n in names or "lora" in n or "lokr" in n or "hada" in n
    }
    with torch.no_grad():
        for name, tensor in names.items():
            own[name].copy_(tensor)
        plain = base(INPUT)
        lycoris.apply_to()
        assert relative(module[0](INPUT), base(INPUT)) < 1e-6
        assert relative(base(INPUT), plain) > 0.1
