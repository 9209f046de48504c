"""Says as JSON what the machine is: ``python -m benchmarks.campaign.machine DEVICE``."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from typing import Any

import psutil
import torch

from benchmarks.measuring.record import origin
from trainer_core.device import (
    attention_speed,
    converting_speed,
    copy_speed,
    moving_speed,
    product_speed,
    unused_gpu,
)
from trainer_core.offload.machine import Machine
from trainer_core.requirements import missing_requirements

_TOLD = ("triton", "bitsandbytes", "torchao", "gguf", "comfy-kitchen", "huggingface-hub", "pytest")


def describe(device: str) -> dict[str, Any]:
    """What measures, and why it could not.

    Args:
        device: ``cuda`` or ``cpu``.
    """
    if device == "cuda" and not torch.cuda.is_available():
        found = unused_gpu("auto") or f"torch {torch.__version__} finds no CUDA device"
        return {"refused": f"{found} ({_driver()})"}
    missing = missing_requirements()
    if missing:
        return {"refused": "; ".join(map(str, missing))}
    found = origin(device)
    found["machine"] |= {
        "ram_bytes": psutil.virtual_memory().total,
        "pinned_limit": Machine().pinned_limit(),
        "c_compiler": shutil.which("cc") or shutil.which("gcc"),
    }
    found["versions"] |= {name: version for name in _TOLD if (version := _version(name))}
    if device == "cuda":
        here, facts = torch.device("cuda", 0), torch.cuda.get_device_properties(0)
        found["machine"] |= {
            "device_bytes": facts.total_memory,
            "device_free": torch.cuda.mem_get_info(0)[0],
            "capability": [facts.major, facts.minor],
            "driver": _driver(),
            "link_bytes_per_s": round(copy_speed(here)),
            "bf16_flops_per_s": round(product_speed(here, torch.bfloat16)),
            "attention_per_s": round(attention_speed(here, torch.bfloat16)),
            "moved_per_s": round(moving_speed(here)),
            "converted_per_s": round(converting_speed(here, torch.bfloat16)),
        }
        found["versions"] |= {"cuda": torch.version.cuda, "torch": torch.__version__}
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "no driver answers"
    return done.stdout.strip() or "no driver answers"


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1])))
