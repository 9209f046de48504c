"""Train LoRA (Quick): from a few answers to a run."""
