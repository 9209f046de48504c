"""A run's folder: its state at a step, which checkpoints it keeps, and how it goes on."""
