"""Qwen-Image: text-to-image, Edit (one control image) and Edit-Plus (several)."""
