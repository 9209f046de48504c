"""Qwen-Image: text-to-image, Edit (one control picture) and Edit-Plus (several)."""

from .family import QWEN_IMAGE

__all__ = ["QWEN_IMAGE"]
