"""What arrives at a node's CLIP and VAE inputs, and how tensors leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ....trainer_core.errors import DatasetError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from ....trainer_core.families.family import Row

Tokens = dict[str, list[list[tuple[Any, ...]]]]
"""ComfyUI's tokens: encoder name to rows of (token id or image or embedding, weight)."""

Socket = TypeVar("Socket")


class Clip(Protocol):
    """What is used of ComfyUI's ``comfy.sd.CLIP``."""

    cond_stage_model: Any
    tokenizer: Any
    patcher: Any

    def tokenize(self, text: str, **options: Any) -> Tokens:
        """Split a text into tokens with weights."""
        ...

    def encode_from_tokens_scheduled(self, tokens: Mapping[str, Sequence[Row]]) -> list[Any]:
        """Encode to ComfyUI's CONDITIONING: pairs of a tensor `[1, L, D]` and a mapping."""
        ...


class Vae(Protocol):
    """What is used of ComfyUI's ``comfy.sd.VAE``."""

    first_stage_model: Any
    patcher: Any

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Encode `[1, H, W, 3]` in [0, 1] to latents before the model's own scaling."""
        ...

    def decode(self, samples_in: Tensor) -> Tensor:
        """Undo `encode`."""
        ...


def require(value: Socket | None, socket: str, purpose: str, remedy: str) -> Socket:
    """The value of an input that may be unconnected.

    Args:
        value: What arrived.
        socket: Name of the input, ``CLIP`` or ``VAE``.
        purpose: What it is needed for, such as ``to encode captions``.
        remedy: Which loader to connect.

    Returns:
        The value.

    Raises:
        InputError: When nothing is connected.
    """
    if value is None:
        raise InputError(f"nothing at the {socket} input", f"a {socket} {purpose}", remedy)
    return value


def require_plain(patcher: Any, socket: str) -> None:
    """Refuse changes of a model whose effect is not in its weights and patches.

    Args:
        patcher: ComfyUI's ModelPatcher of the CLIP or VAE.
        socket: Name of the input it came from.

    Raises:
        InputError: When it carries hooks or injections: they can change by the sampling step or
            cannot be told apart, so that a cache would not notice that they were exchanged.
    """
    hooked = getattr(patcher, "forced_hooks", None) is not None
    if hooked or getattr(patcher, "injections", None):
        what = "hooks (Set CLIP Hooks)" if hooked else "a LoRA in bypass mode or another injection"
        raise InputError(
            f"a {socket} with {what} at the {socket} input",
            f"a {socket} as a loader gives it, or with LoRA patched in by Load LoRA",
            f"Connect the {socket} from before that node, or use Load LoRA instead.",
        )


def require_controls(variant: str, caption: str, count: int, fewest: int, most: int) -> None:
    """Check how many control images a caption has.

    Args:
        variant: The base's variant.
        caption: The caption, for the message.
        count: Number of control images.
        fewest: Least allowed number.
        most: Largest allowed number.

    Raises:
        DatasetError: When the number does not fit.
    """
    if not fewest <= count <= most:
        wanted = str(fewest) if fewest == most else f"at least {fewest}"
        raise DatasetError(
            f"{count} control pictures for the caption {caption[:60]!r}",
            f"{wanted}, as the base's variant is {variant}",
            "Correct the control pictures, or choose another variant of the base.",
        )


def ordinary(tensor: Tensor) -> Tensor:
    """A copy that owes nothing to ComfyUI: float32, on the CPU, outside inference mode.

    Args:
        tensor: From ComfyUI, which computes under ``torch.inference_mode``; such tensors can be
            neither trained on nor changed elsewhere.

    Returns:
        The same values, contiguous, without a gradient.
    """
    import torch

    with torch.inference_mode(False), torch.no_grad():
        return tensor.to("cpu", torch.float32, copy=True).contiguous()


def encode_tokens(
    clip: Clip, tokens: Mapping[str, Sequence[Row]]
) -> tuple[Tensor, Mapping[str, Any]]:
    """Encode as ComfyUI's CLIPTextEncode does.

    Args:
        clip: The graph's CLIP; ComfyUI loads it to its device.
        tokens: Of one text.

    Returns:
        The text's tensor `[1, L, D]` and what belongs to it (``pooled_output``,
        ``attention_mask``), still ComfyUI's.
    """
    import torch

    with torch.inference_mode():
        ((text, extra),) = clip.encode_from_tokens_scheduled(tokens)
    return text, extra
