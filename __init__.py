"""Adapter Trainer: a ComfyUI node pack around the headless library in `trainer_core`."""
