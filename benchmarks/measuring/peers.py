"""The peers: other implementations of the same kinds, each of which may be absent.

Their parameters have the base's dtype, which is the fastest that they can be run with; PEFT's LoRA
is also measured with the float32 parameters that ours always have.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .checkouts import NotHereError, checkout, load_modules
from .recipes import RANK, Adapted, Recipe, draw_linear, frozen_linear

Build = Callable[[nn.Linear], Adapted]
FLOAT32 = "float32 parameters"


def peer_recipes(names: Sequence[str] | None = None) -> tuple[list[Recipe], dict[str, str]]:
    """Find the peers.

    Args:
        names: Whose; None looks for all.

    Returns:
        The recipes of those that are here, and for the others the reason why they are not.
    """
    sources: dict[str, Callable[[str], list[Recipe]]] = {
        "PEFT": _peft,
        "LyCORIS": _lycoris,
        "ComfyUI": _comfyui,
        "musubi-tuner": _musubi,
        "ai-toolkit": _ai_toolkit,
    }
    found: list[Recipe] = []
    absent: dict[str, str] = {}
    for name in sources if names is None else names:
        try:
            recipes = sources[name](name)
        except NotHereError as reason:
            absent[name] = str(reason)
            continue
        for recipe in recipes:
            if reason := _failure(recipe):
                absent[recipe.name] = reason
            else:
                found.append(recipe)
    return found, absent


def _failure(recipe: Recipe) -> str:
    """Why a recipe does not run in the version that is here; empty when it does."""
    weight, bias = draw_linear(64, 64, torch.bfloat16)
    x = torch.ones(4, 64, dtype=torch.bfloat16, requires_grad=True)
    try:
        adapted = recipe.build(frozen_linear(weight, bias))
        torch.autograd.grad(adapted.forward(x).sum(), [x, *adapted.parameters])
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise NotHereError("not installed")


def _trained(module: nn.Module, dtype: torch.dtype) -> list[nn.Parameter]:
    parameters = [each for each in module.parameters() if each.requires_grad]
    for parameter in parameters:
        parameter.data = parameter.data.to(dtype)
    return parameters


def peft_configs(**options: Any) -> dict[str, Any]:
    """PEFT's configuration of each group that it has."""
    from peft import LoHaConfig, LoKrConfig, LoraConfig

    lora = {"r": RANK, "lora_alpha": RANK, **options}
    low = {"r": RANK, "alpha": RANK, **options}
    # There is no switch for a whole second factor; a rank beyond its size asks for it.
    whole = {**options, "r": 1 << 14, "alpha": 1 << 14}
    return {
        "lora": LoraConfig(**lora),
        "loha": LoHaConfig(**low),
        "lokr r16 f8": LoKrConfig(decompose_factor=8, **low),
        "lokr r16 f-1": LoKrConfig(decompose_factor=-1, **low),
        "lokr full f8": LoKrConfig(decompose_factor=8, **whole),
        "dora output": LoraConfig(use_dora=True, **lora),
    }


def _peft(source: str) -> list[Recipe]:
    _need("peft")

    def make(group: str, wide: bool) -> Build:
        def build(linear: nn.Linear) -> Adapted:
            from peft import inject_adapter_in_model

            module = nn.Sequential(linear)
            inject_adapter_in_model(peft_configs(target_modules=["0"])[group], module)
            dtype = linear.weight.dtype
            wider = torch.promote_types(dtype, torch.float32) if wide else dtype
            return Adapted(module.train(), _trained(module, wider), linear)

        return build

    recipes = [Recipe(source, group, make(group, False)) for group in peft_configs()]
    return [*recipes, Recipe(source, "lora", make("lora", True), FLOAT32)]


def _lycoris(source: str) -> list[Recipe]:
    _need("lycoris")
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    classes: dict[str, tuple[Any, dict[str, Any]]] = {
        "lora": (LoConModule, {}),
        "loha": (LohaModule, {}),
        "lokr r16 f8": (LokrModule, {"factor": 8}),
        "lokr r16 f-1": (LokrModule, {"factor": -1}),
        "lokr full f8": (LokrModule, {"factor": 8, "full_matrix": True}),
    }
    dora: dict[str, tuple[Any, dict[str, Any]]] = {
        "dora output": (LoConModule, {"weight_decompose": True, "wd_on_out": True}),
        "dora input": (LoConModule, {"weight_decompose": True, "wd_on_out": False}),
        "dora loha": (LohaModule, {"weight_decompose": True, "wd_on_out": False}),
        "dora lokr": (LokrModule, {"weight_decompose": True, "wd_on_out": False, "factor": 8}),
    }

    def make(module_class: Any, options: dict[str, Any], bypass: bool) -> Build:
        def build(linear: nn.Linear) -> Adapted:
            module = module_class(
                "layer", linear, lora_dim=RANK, alpha=RANK, bypass_mode=bypass, **options
            )
            return _hung_on(linear, module)

        return build

    return [
        Recipe(source, group, make(*classes[group], bypass), "bypass" if bypass else "rebuild")
        for bypass in (True, False)
        for group in classes
    ] + [Recipe(source, group, make(*dora[group], False), "rebuild") for group in dora]


def _hung_on(linear: nn.Linear, module: Any, keep: Any = None) -> Adapted:
    """An adapter that replaces the Linear's own forward."""
    dtype = linear.weight.dtype
    module.to(linear.weight.device, dtype)
    module.train()
    module.apply_to()
    parameters = [each for each in module.parameters() if each.requires_grad]
    return Adapted(linear, parameters, linear, (module, keep))


def _comfyui(source: str) -> list[Recipe]:
    root = checkout("COMFYUI_PATH", "~/ComfyUI", "comfy/weight_adapter/__init__.py")
    (adapters,) = load_modules(
        {"comfy": root / "comfy"},
        ("comfy.model_management", "comfy.patcher_extension"),
        ("comfy.weight_adapter",),
    )
    groups = {
        "lora": (adapters.LoRAAdapter, RANK),
        "loha": (adapters.LoHaAdapter, RANK),
        # Its rank is the factor: both Kronecker factors are whole.
        "lokr full f8": (adapters.LoKrAdapter, 8),
    }

    def make(group: str, bypass: bool) -> Build:
        def build(linear: nn.Linear) -> Adapted:
            adapter_class, rank = groups[group]
            adapter = adapter_class.create_train(linear.weight, rank=rank, alpha=float(RANK))
            adapter = adapter.to(linear.weight.device, linear.weight.dtype).train()
            parameters = [each for each in adapter.parameters() if each.requires_grad]
            if bypass:
                hook = adapters.BypassForwardHook(linear, adapter)
                # As `inject` does, without its move to the host's device.
                hook.original_forward = linear.forward
                linear.forward = hook._bypass_forward
                return Adapted(linear, parameters, linear, hook)

            def forward(x: Tensor) -> Tensor:
                return nn.functional.linear(x, adapter(linear.weight), linear.bias)

            return Adapted(forward, parameters, linear)

        return build

    # Its LoHa has no bypass form.
    forms = [(g, True) for g in groups if g != "loha"] + [(g, False) for g in groups]
    return [
        Recipe(source, group, make(group, bypass), "bypass" if bypass else "weight wrap")
        for group, bypass in forms
    ]


def _musubi(source: str) -> list[Recipe]:
    root = checkout("MUSUBI_TUNER_PATH", None, "src/musubi_tuner/networks/lokr.py")
    lora, loha, lokr = load_modules(
        {"musubi_tuner": root / "src" / "musubi_tuner"},
        (),
        [f"musubi_tuner.networks.{name}" for name in ("lora", "loha", "lokr")],
    )
    classes: dict[str, tuple[Any, dict[str, Any]]] = {
        "lora": (lora.LoRAModule, {}),
        "loha": (loha.LoHaModule, {}),
        "lokr r16 f8": (lokr.LoKrModule, {"factor": 8}),
        "lokr r16 f-1": (lokr.LoKrModule, {"factor": -1}),
        "lokr full f8": (lokr.LoKrModule, {"factor": 8, "lora_dim": 1 << 14}),
    }

    def make(group: str) -> Build:
        def build(linear: nn.Linear) -> Adapted:
            module_class, options = classes[group]
            sizes = {"lora_dim": RANK, "alpha": None, **options}
            return _hung_on(linear, module_class("layer", linear, **sizes))

        return build

    return [Recipe(source, group, make(group)) for group in classes]


@dataclass(eq=False)
class _Network:
    """Stands for ai-toolkit's network, which its layers ask these questions."""

    torch_multiplier: Tensor
    is_active: bool = True
    is_lorm: bool = False
    is_merged_in: bool = False
    _multiplier: float = 1.0


def _ai_toolkit(source: str) -> list[Recipe]:
    root = checkout("AI_TOOLKIT_PATH", None, "toolkit/models/lokr.py") / "toolkit"
    (lokr,) = load_modules(
        {"toolkit": root, "toolkit.models": root / "models"},
        (
            *("optimum", "optimum.quanto", "torchao", "torchao.dtypes"),
            *(f"toolkit.{name}" for name in ("config_modules", "lorm", "metadata")),
            *("toolkit.paths", "toolkit.saving"),
        ),
        ("toolkit.models.lokr",),
    )
    groups: dict[str, dict[str, int]] = {
        "lokr r16 f8": {"factor": 8},
        "lokr r16 f-1": {"factor": -1},
        "lokr full f8": {"factor": 8, "lora_dim": 1 << 14},
    }

    def make(group: str) -> Build:
        def build(linear: nn.Linear) -> Adapted:
            network = _Network(torch.ones(1, device=linear.weight.device))
            sizes = {"lora_dim": RANK, "alpha": None, **groups[group]}
            module = lokr.LokrModule("layer", linear, network=network, **sizes)
            return _hung_on(linear, module, network)

        return build

    return [Recipe(source, group, make(group)) for group in groups]
