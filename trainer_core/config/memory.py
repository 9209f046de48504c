"""Settings of device and memory."""

from __future__ import annotations

from .section import Section, setting


class MemorySection(Section):
    """Where the run computes and what it trades for memory."""

    device: str = setting(
        "auto", "'auto', or a torch device such as 'cuda', 'cuda:1', 'mps', 'xpu' or 'cpu'."
    )
    gradient_checkpointing: bool = setting(
        True, "Compute activations again in the backward pass: less memory, about a third slower."
    )
    threads: int | None = setting(
        None,
        "CPU threads of torch. Unset: 1 for the embedded base (its matrices are too small to "
        "share), torch's own choice otherwise.",
        advanced=True,
        ge=1,
        le=1024,
    )
