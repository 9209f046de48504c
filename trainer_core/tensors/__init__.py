"""Tensors and their files: one reader and one writer of safetensors, rounding, a randomized SVD."""
