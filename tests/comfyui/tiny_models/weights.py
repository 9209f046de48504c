"""Random weights for modules of any kind, the same for the same seed."""

from __future__ import annotations

import hashlib

import torch

_SPREADS = ("running_var", "std-of-means", "latents_std")
"""Buffers that divide, and so have to lie above 0."""


@torch.no_grad()
def fill(module, seed: int) -> None:
    """Give every parameter, and every table of a file, a value.

    Layers that a training begins with zeros are filled too: else text and time would not reach the
    output. Matrices keep the size of what goes through them; scales lie around 1.

    Args:
        module: Its parameters are written in place, in whatever precision they have.
        seed: Each parameter has its own stream of numbers, which its name and this choose.
    """
    for name, parameter in module.state_dict(keep_vars=True).items():
        if not parameter.is_floating_point():
            continue
        key = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith(_SPREADS):
            values = 1 + values.abs()
        elif parameter.ndim >= 2:
            values /= max(1, parameter[0].numel()) ** 0.5
        elif name.endswith(("weight", "scale", "gamma")):
            values = 1 + 0.1 * values
        else:
            values *= 0.1
        parameter.copy_(values)


def weights_hash(patcher) -> str:
    """Sha256 of all weights of a MODEL, with name, precision and shape, as they are unpatched.

    Args:
        patcher: ComfyUI's MODEL. Weights that it has patched are taken from its backup.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(patcher.model.state_dict().items()):
        kept = patcher.backup.get(name)
        values = (tensor if kept is None else kept.weight).detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
