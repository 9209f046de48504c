"""How much device memory a run is expected to take. An estimate, not a measurement.

    base        = base parameters x bytes of the precision
    adapter     = trainable parameters x 16 bytes (weight, gradient and AdamW's two moments, fp32)
    activations = samples x tokens x width x bytes x states
    states      = blocks + 17 with gradient checkpointing (one input kept for each block, and the
                  inside of the block that is being recomputed), 17 x blocks without

17 values per token and unit of width is what a transformer block keeps when the attention matrix
is not stored. Tokens are counted with the longest text. The frozen base needs fewer values; what
libraries and the allocator need is not counted here.

Source: Korthikanti et al. 2022, section 4.1 (34 bytes in 16-bit precision).
"""

from __future__ import annotations

from dataclasses import dataclass

ADAPTER_BYTES = 16
"""Weight, gradient and two moments of one trainable parameter, each fp32."""

BLOCK_STATES = 17
"""Values that a block keeps for each token and unit of width."""


@dataclass(frozen=True, slots=True)
class Size:
    """What decides the memory of a step.

    Attributes:
        base_parameters: Parameters of the frozen denoiser.
        trainable_parameters: Parameters of the adapter.
        blocks: Number of transformer blocks.
        width: Width of the hidden state.
        tokens: Tokens of a sample: picture, controls and text.
        samples: Samples in a micro-batch.
        value_bytes: Bytes of a number in the run's precision.
        checkpointing: Whether activations are computed again in the backward pass.
    """

    base_parameters: int
    trainable_parameters: int
    blocks: int
    width: int
    tokens: int
    samples: int
    value_bytes: int
    checkpointing: bool


def memory_estimate(size: Size) -> dict[str, int]:
    """Estimate the device memory of a training step.

    Args:
        size: What decides it.

    Returns:
        Bytes of ``base``, ``adapter``, ``activations`` and their ``total``.
    """
    states = size.blocks + BLOCK_STATES if size.checkpointing else size.blocks * BLOCK_STATES
    parts = {
        "base": size.base_parameters * size.value_bytes,
        "adapter": size.trainable_parameters * ADAPTER_BYTES,
        "activations": size.samples * size.tokens * size.width * size.value_bytes * states,
    }
    return {**parts, "total": sum(parts.values())}


def gibibytes(count: int) -> str:
    """Write a number of bytes for a person, as ``1.50 GiB`` or ``12.3 MiB``."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"
