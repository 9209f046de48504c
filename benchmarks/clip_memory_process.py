"""Runs in ComfyUI's interpreter: simulated steps of Wan's 14B on clips.

Usage: clip_memory_process.py REPOSITORY FOLDER JOBS, with the folders of ComfyUI and of its tests
in PYTHONPATH; `benchmarks.clip_memory` starts it. JOBS is a file with widths, heights and numbers
of frames as JSON; FOLDER gets ``results.json``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import comfy.cli_args
import torch
from torch import Tensor, nn

comfy.cli_args.args.cpu = True
# ComfyUI looks for devices when more of it is imported.
import comfy.ldm.wan.model  # noqa: E402
import comfy.ops  # noqa: E402
from loaded_pack import part  # noqa: E402

SIZES = {
    "model_type": "t2v",
    "dim": 5120,
    "ffn_dim": 13824,
    "num_heads": 40,
    "num_layers": 40,
    "text_dim": 4096,
    "in_dim": 16,
    "out_dim": 16,
}
"""Of Wan 2.1 14B, and of each expert of Wan 2.2 A14B."""

CHANNELS, PIXELS, EVERY, TEXT, RANK = 16, 8, 4, 512, 16
"""Of the latents; pixels and frames for each of them; tokens of a text, to which it is padded."""


def main(repository: str, folder: str, jobs: str) -> None:
    """Simulate the jobs in order."""
    del repository  # it is found beside this file
    with torch.device("meta"):
        model = comfy.ldm.wan.model.WanModel(
            **SIZES, dtype=torch.bfloat16, operations=comfy.ops.disable_weight_init
        )
    model.config = {}
    model._keep_in_fp32_modules = ["patch_embedding"]  # as ComfyUI does
    family = family_of(model)
    wanted = json.loads(Path(jobs).read_text(encoding="utf-8"))
    with part("nodes.host.comfy_engine").differentiable_kernels():
        found = [job | simulated(model, family, **job) for job in wanted]
    Path(folder, "results.json").write_text(json.dumps(found), encoding="utf-8")


def family_of(model: nn.Module) -> Any:
    """The family that a graph makes of it, as far as a simulation asks."""
    native = part("trainer_core.families.native_model")
    checkpointing = part("nodes.host.checkpointed_forward").enable_checkpointing
    lists = native.block_lists(model)

    def refuse(*given: object) -> Any:
        raise NotImplementedError

    lent = part("trainer_core.families.lent").LentDenoiser(
        "Wan 14B", "", CHANNELS, PIXELS, open=refuse, sigmas=refuse
    )
    family = part("trainer_core.families.lent_family").lent_family(
        lent, predict, native.key_map(model), PIXELS
    )
    return dataclasses.replace(
        family,
        text=dataclasses.replace(
            family.text,
            conditioning_shapes=lambda config, tokens: {"text": (tokens, SIZES["text_dim"])},
        ),
        layers=dataclasses.replace(
            family.layers,
            repeated_blocks=lists,
            presets=native.native_presets(model),
            shared_inputs=native.shared_inputs(model),
            enable_checkpointing=lambda denoiser: checkpointing(denoiser, lists),
        ),
    )


def predict(
    model: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    texts: Sequence[Any],
    controls: Sequence[Tensor],
    guidance: float,
) -> Tensor:
    """The network's output, with torch's own attention as on a GPU."""
    del controls, guidance
    context = torch.stack([each["text"] for each in texts])
    options = {"optimized_attention_override": part("nodes.host.comfy_engine").torch_attention}
    return model(
        noisy.to(torch.bfloat16), 1000 * sigma, context, transformer_options=options
    ).float()


def simulated(
    model: nn.Module, family: Any, width: int, height: int, frames: int
) -> dict[str, int]:
    """Bytes of a step beside the weights, its FLOPs, and the numbers of the base."""
    simulation = part("trainer_core.training.memory.step_simulation")
    config = part("trainer_core.config").RunConfig.model_validate(
        {"family": family.name, "adapter": {"kind": "lora", "rank": RANK}}
    )
    latents = (CHANNELS, (frames - 1) // EVERY + 1, height // PIXELS, width // PIXELS)
    inputs = simulation.StepInputs((latents,), TEXT, torch.bfloat16)
    step = simulation.StepSimulation(model, family, config, inputs).step()
    numbers = sum(each.numel() for each in model.parameters())
    return dataclasses.asdict(step) | {"numbers": numbers}


if __name__ == "__main__":
    main(*sys.argv[1:])
