"""What this machine has: libraries, devices, number formats, attention."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from ..requirements import MissingLibrary, all_requirements, installed_version, meets
from ..version import __version__

if TYPE_CHECKING:
    import torch

NEEDED = ("torch", "diffusers", "peft", "accelerate", "transformers")
"""What the extra `train` installs."""

OPTIONAL = {"tensorboard": "training curves for TensorBoard (metrics.jsonl is always written)"}
"""Packages that a run does without, to what they would add; each is an extra of its own name."""

_ALWAYS = ("numpy", "pillow", "pydantic", "pyyaml", "safetensors")


def environment_report() -> dict[str, Any]:
    """Describe the environment; nothing is changed, and no package is imported but torch."""
    versions = {name: installed_version(name) for name in (*NEEDED, *_ALWAYS, *OPTIONAL)}
    report: dict[str, Any] = {
        "adapter_trainer": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version or "not installed" for name, version in versions.items()},
        "missing": missing_packages(versions),
    }
    if versions["torch"]:
        report["devices"] = device_reports()
    return report


def missing_packages(versions: dict[str, str | None]) -> list[str]:
    """One line for each package that is absent or too old: what it is for and how to get it.

    Args:
        versions: Installed versions by name, None for what is absent; of `NEEDED` and `OPTIONAL`.
    """
    lines = []
    for name, minimum in all_requirements():
        found = versions.get(name)
        if name in NEEDED and not (found and meets(found, minimum)):
            library = MissingLibrary(name, minimum, found)
            lines.append(f"{library}; training needs it: pip install 'adapter-trainer[train]'")
    lines += [
        f"{name} adds {use}: pip install 'adapter-trainer[{name}]'"
        for name, use in OPTIONAL.items()
        if not versions[name]
    ]
    return lines


def device_reports() -> list[dict[str, Any]]:
    """Describe the CPU and every accelerator of the best kind that torch sees."""
    import torch

    from ..device import resolve_device, resolve_precision

    best = resolve_device("auto")
    devices = [torch.device("cpu")]
    if best.type != "cpu":
        count = torch.get_device_module(best).device_count()
        devices += [torch.device(best.type, index) for index in range(count)]
    return [
        {
            "device": str(device),
            "name": _device_name(device),
            "default": device == best or (device.type == best.type and best.index is None),
            "automatic_precision": resolve_precision("auto", device),
            "number_formats": [
                name for name in ("float32", "bfloat16", "float16") if _has(device, name)
            ],
            "attention": _attention(device),
        }
        for device in devices
    ]


def _device_name(device: torch.device) -> str:
    import torch

    if device.type == "cpu":
        return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name is not None else device.type


def _has(device: torch.device, dtype_name: str) -> bool:
    import torch

    try:
        ones = torch.ones(8, 8, dtype=getattr(torch, dtype_name), device=device)
        return bool((ones @ ones).sum().item() == 512)
    except (RuntimeError, TypeError):
        return False


def _attention(device: torch.device) -> list[str]:
    """The kernels of torch's attention that run in the device's automatic precision."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from ..device import DTYPES, resolve_precision

    dtype = DTYPES[resolve_precision("auto", device)]
    query = torch.ones(1, 2, 64, 64, dtype=dtype, device=device)

    def runs(backend: SDPBackend) -> bool:
        try:
            with sdpa_kernel(backend):
                scaled_dot_product_attention(query, query, query)
        except RuntimeError:
            return False
        return True

    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "plain": SDPBackend.MATH,
    }
    return [name for name, backend in kernels.items() if runs(backend)]
