"""One training step: its micro-batches, gradients, schedule, and the processes that share it."""
