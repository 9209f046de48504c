"""Qwen-Image: text-to-image, Edit (one control picture) and Edit-Plus (several)."""
