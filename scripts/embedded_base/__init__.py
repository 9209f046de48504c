"""Builds the tiny Qwen-Image base model that is bundled with the trainer."""
