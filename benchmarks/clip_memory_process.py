"""Runs in ComfyUI's interpreter: simulated steps of video models on clips.

Usage: clip_memory_process.py REPOSITORY FOLDER JOBS, with the folders of ComfyUI and of its tests
in PYTHONPATH; `benchmarks.clip_memory` starts it. JOBS is a file with networks, widths, heights and
numbers of frames as JSON; FOLDER gets ``results.json``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import comfy.cli_args
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

comfy.cli_args.args.cpu = True
# ComfyUI looks for devices when more of it is imported.
import comfy.ldm.lightricks.av_model  # noqa: E402
import comfy.ldm.wan.model  # noqa: E402
import comfy.ops  # noqa: E402
from loaded_pack import part  # noqa: E402

RANK, RATE, SOUND = 16, 25, (8, 16)
"""Of the LoRA; frames, and latents of sound, a second of LTX-2; channels and bands of those."""

OPTIONS = {
    "optimized_attention_override": part("nodes.host.comfy_model_management").torch_attention
}
"""Torch's own attention, as on a GPU."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A video model at its published sizes, without numbers.

    Attributes:
        kind: ComfyUI's class.
        sizes: Its arguments.
        channels: Of the latents; `pixels` and `every` frames make one.
        text: Tokens of a text, to which it is padded, and numbers of each.
        call: Predicts latents `[B, C, F, h, w]` with a level of noise and texts.
        in_place: Whether its blocks drop the results of changes in place.
    """

    kind: Callable[..., nn.Module]
    sizes: dict[str, Any]
    channels: int
    pixels: int
    every: int
    text: tuple[int, int]
    call: Callable[[nn.Module, Tensor, Tensor, Tensor, dict[str, Any]], Tensor]
    in_place: bool = False


def of_clips(
    model: nn.Module, noisy: Tensor, sigma: Tensor, text: Tensor, options: dict[str, Any]
) -> Tensor:
    """A clip's prediction."""
    return model(noisy, 1000 * sigma, text, transformer_options=options)


def with_sound(
    model: nn.Module, noisy: Tensor, sigma: Tensor, text: Tensor, options: dict[str, Any]
) -> Tensor:
    """A clip's prediction, with all that its sound adds to a step."""
    frames = 8 * (noisy.shape[2] - 1) + 1
    sound = noisy.new_zeros(len(noisy), SOUND[0], frames, SOUND[1])
    clip, heard = model([noisy, sound], sigma, text, None, RATE, transformer_options=options)
    return clip + 0 * heard.sum()


NETWORKS = {
    "Wan 14B": Network(
        comfy.ldm.wan.model.WanModel,
        {
            "model_type": "t2v",
            "dim": 5120,
            "ffn_dim": 13824,
            "num_heads": 40,
            "num_layers": 40,
            "text_dim": 4096,
            "in_dim": 16,
            "out_dim": 16,
        },
        channels=16,
        pixels=8,
        every=4,
        text=(512, 4096),
        call=of_clips,
    ),
    # Its class has the sizes of LTX-2 19B.
    "LTX-2 19B with sound": Network(
        comfy.ldm.lightricks.av_model.LTXAVModel,
        {},
        channels=128,
        pixels=32,
        every=8,
        text=(1024, 2 * 3840),
        call=with_sound,
        in_place=True,
    ),
}
"""By name; Wan 2.1, and each expert of Wan 2.2 A14B."""


def main(repository: str, folder: str, jobs: str) -> None:
    """Simulate the jobs in order."""
    del repository  # it is found beside this file
    engine, found = part("nodes.host.comfy_model_management"), []
    wanted = json.loads(Path(jobs).read_text(encoding="utf-8"))
    for name, network in NETWORKS.items():
        with torch.device("meta"):
            model = network.kind(
                **network.sizes, dtype=torch.bfloat16, operations=comfy.ops.disable_weight_init
            )
        model.config = {}
        model._keep_in_fp32_modules = ["patch_embedding"]  # as ComfyUI does
        family = family_of(name, network, model)
        with contextlib.ExitStack() as at_end:
            at_end.enter_context(engine.in_training())
            at_end.enter_context(engine.differentiable_kernels())
            for path in family.layers.repeated_blocks if network.in_place else ():
                for block in model.get_submodule(path).children():
                    block.forward = _Followed(block.forward)
            for job in wanted:
                if job["network"] == name:
                    sizes = {key: job[key] for key in ("width", "height", "frames")}
                    found.append(job | simulated(model, family, network, **sizes))
    Path(folder, "results.json").write_text(json.dumps(found), encoding="utf-8")


class _OutOfPlace(TorchFunctionMode):
    """Changes in place give new tensors, which stand for the old ones from then on."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[int, tuple[Tensor, Tensor]] = {}  # old ones are kept, so ids are theirs

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own, named = pytree.tree_map(self.newest, args), pytree.tree_map(self.newest, kwargs or {})
        name = getattr(func, "__name__", "")
        changed = _CHANGES.get(name)
        if changed is None:
            return _REBOUND.get(name, func)(*own, **named)
        result = changed(*own, **named)
        self._newest[id(args[0])] = args[0], result
        return result

    def newest(self, value: Any) -> Any:
        """What stands for a tensor now."""
        while id(value) in self._newest:
            value = self._newest[id(value)][1]
        return value


_CHANGES = {"add_": torch.add, "addcmul_": torch.addcmul}
_REBOUND = {"__iadd__": torch.add}
"""The name in the block's code is bound to the result."""


class _Followed:
    """A block's forward pass as a run calls it: what it changes in place is a new tensor.

    Attributes:
        forward: The block's own; a copy of the network has a copy of it, which a closure had not.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **options: Any) -> Any:
        with _OutOfPlace() as changes:
            return pytree.tree_map(changes.newest, self.forward(*args, **options))


def family_of(name: str, network: Network, model: nn.Module) -> Any:
    """The family that a graph makes of it, as far as a simulation asks."""
    native = part("trainer_core.families.graph_model_layers")
    checkpointing = part("nodes.host.checkpointed_forward").enable_checkpointing
    lists = native.block_lists(model)

    def refuse(*given: object) -> Any:
        raise NotImplementedError

    def predict(
        model: nn.Module,
        noisy: Tensor,
        sigma: Tensor,
        texts: Sequence[Any],
        controls: Sequence[Tensor],
        guidance: float,
    ) -> Tensor:
        del controls, guidance
        text = torch.stack([each["text"] for each in texts])
        return network.call(model, noisy.to(torch.bfloat16), sigma, text, OPTIONS).float()

    lent = part("trainer_core.families.graph_model_denoiser").LentDenoiser(
        name, "", network.channels, network.pixels, open=refuse, sigmas=refuse
    )
    family = part("trainer_core.families.graph_model_family").lent_family(
        lent, predict, native.key_map(model), network.pixels
    )
    return dataclasses.replace(
        family,
        text=dataclasses.replace(
            family.text,
            conditioning_shapes=lambda config, tokens: {"text": (tokens, network.text[1])},
        ),
        layers=dataclasses.replace(
            family.layers,
            repeated_blocks=lists,
            presets=native.native_presets(model),
            shared_inputs=native.shared_inputs(model),
            enable_checkpointing=lambda denoiser: checkpointing(denoiser, lists),
        ),
    )


def simulated(
    model: nn.Module, family: Any, network: Network, width: int, height: int, frames: int
) -> dict[str, int]:
    """Bytes of a step beside the weights, its FLOPs, and the numbers of the base."""
    simulation = part("trainer_core.training.memory.step_simulation")
    config = part("trainer_core.config").RunConfig.model_validate(
        {"family": family.name, "adapter": {"kind": "lora", "rank": RANK}}
    )
    sides = height // network.pixels, width // network.pixels
    latents = (network.channels, (frames - 1) // network.every + 1, *sides)
    inputs = simulation.StepInputs((latents,), network.text[0], torch.bfloat16)
    step = simulation.StepSimulation(model, family, config, inputs).step()
    numbers = sum(each.numel() for each in model.parameters())
    return dataclasses.asdict(step) | {"numbers": numbers}


if __name__ == "__main__":
    main(*sys.argv[1:])
