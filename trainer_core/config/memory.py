"""Settings of the device, and of what is traded for memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .section import Other, Problem, Section, setting

BaseFormat = Literal[
    "auto", "dense", "file", "fp8", "int8", "int8_rotated", "nf4", "uint4", "uint3"
]
RECOVERABLE = ("uint4", "uint3")
"""Formats that accuracy-recovery adapters are made for."""
_CHECKPOINTED = Other(
    "gradient_checkpointing", because="it lets a block be called again in the backward pass"
)


class MemorySection(Section):
    """Where the run computes and what it trades for memory."""

    device: str = setting(
        "auto",
        "Leave it on auto unless you have several GPUs. 'auto', or a torch device such as 'cuda', "
        "'cuda:1', 'mps', 'xpu' or 'cpu'.",
    )
    encoder_device: str | None = setting(
        None,
        "Leave it unset unless you have several GPUs. Where the text encoder and the VAE compute, "
        "such as 'cuda:1' or 'cpu'; unset: on memory.device, before the base comes.",
        advanced=True,
    )
    plan: Literal["auto", "fastest", "smallest", "off"] = setting(
        "auto",
        "Leave it on auto; take smallest when VRAM runs out. Chooses base_format, blocks_to_swap "
        "and others that are left open. 'auto': fast; the base is rounded only where worth it. "
        "'fastest': speed alone counts. 'smallest': the least VRAM. 'off': a dense base, nothing "
        "swapped, unless set.",
    )
    gradient_checkpointing: bool = setting(
        True,
        "Leave it on; switch it off to train faster when much VRAM is left. Lets blocks compute "
        "their activations again in the backward pass: less memory, about a third slower where "
        "all of them do.",
        advanced=True,
    )
    blocks_to_checkpoint: int | None = setting(
        None,
        "Leave it unset: the plan chooses, or what the first step leaves free where nothing is "
        "planned. Lower it to train faster when VRAM is left. How many blocks compute their "
        "activations again; the others keep them. Swapped blocks are always among them.",
        advanced=True,
        ge=0,
        le=1000,
        only_with=_CHECKPOINTED,
        neutral=(0,),
    )
    checkpoint_inputs: Literal["auto", "device", "ram"] = setting(
        "auto",
        "Leave it on auto: the plan chooses; the device where nothing is planned. Take ram when "
        "VRAM runs out. Where the inputs of checkpointed blocks wait for the backward pass: on "
        "the 'device', or in 'ram', which sends them there and back in each step.",
        advanced=True,
        only_with=Other("gradient_checkpointing", because="no block is checkpointed"),
        not_with=Other("blocks_to_checkpoint", 0, because="no block is checkpointed"),
        neutral=("device",),
    )
    blocks_to_swap: int | None = setting(
        None,
        "Leave it unset: 'plan' chooses. Raise it when VRAM runs out; steps get slower. "
        "Transformer blocks whose weights lie in RAM and come to the device when they are used, "
        "for bases larger than the VRAM. Needs gradient checkpointing.",
        advanced=True,
        ge=0,
        le=1000,
        only_with=_CHECKPOINTED,
        not_with=Other(
            "adapter.exact_delta",
            because="exact_delta puts the adapter's weights beside ones that stay on the device",
        ),
        neutral=(0,),
    )
    swap_slots: int = setting(
        2,
        "Leave it; take 1 when the last bit of VRAM is missing. Swapped blocks that are on the "
        "device at a time: 2 lets one come while another computes.",
        advanced=True,
        ge=1,
        le=16,
    )
    master: Literal["auto", "pinned", "pageable", "file"] = setting(
        "auto",
        "Leave it on auto; take file when RAM is too small. Where swapped blocks lie: 'pinned' "
        "RAM, which is read fastest, 'pageable' RAM, or only in the base's 'file', which is then "
        "read in each step. 'auto': by 'plan'; RAM, as much of it pinned as the system allows, "
        "unless it is too small.",
        advanced=True,
    )
    base_format: BaseFormat = setting(
        "auto",
        "Leave it on auto: 'plan' chooses. Take fp8 or nf4 when VRAM runs out. How large weights "
        "are kept: 'dense', in the run's precision; 'file', as they are; 'fp8', 'int8', a byte a "
        "weight; 'int8_rotated', for compute 8bit; 'nf4', half a byte; 'uint4', 'uint3', with an "
        "accuracy-recovery adapter.",
        advanced=True,
        resumed="course",
    )
    compute: Literal["dense", "8bit"] = setting(
        "dense",
        "Leave it on dense; try 8bit with memory.compile, as it is slow without. Multiplies the "
        "base's weights as stored, in int8 or fp8; inputs and gradients are rounded to 8 bits, an "
        "error of 1 (int8) to 4 (fp8) percent a layer. 'dense': in the run's precision.",
        advanced=True,
        not_with=Other(
            "base_format",
            "auto",
            "dense",
            "nf4",
            "uint4",
            "uint3",
            such_as="int8",
            because="weights that are kept in 8 bits are multiplied as they are",
        ),
        resumed="course",
    )
    compile: bool = setting(
        False,
        "Leave it off; switch it on for a long run on an NVIDIA GPU: it takes a minute or more at "
        "the start. Compiles the base's blocks with the adapter in them. Needs Triton; where it "
        "is missing, the run goes on without.",
        advanced=True,
    )
    threads: int | None = setting(
        None,
        "Leave it unset unless the computer must stay free for other work. CPU threads of torch. "
        "Unset: 1 for the embedded base (its matrices are too small to share), torch's own choice "
        "otherwise.",
        advanced=True,
        ge=1,
        le=1024,
    )

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        count, swapped = self.blocks_to_checkpoint, self.blocks_to_swap or 0
        if count and self.gradient_checkpointing and count < swapped:
            yield Problem(
                f"memory.blocks_to_checkpoint is {count} and memory.blocks_to_swap is {swapped}",
                "every swapped block among the checkpointed ones, as its weights are overwritten "
                "before the backward pass",
                f"Set memory.blocks_to_checkpoint to {swapped} or more, or lower "
                "memory.blocks_to_swap.",
            )
