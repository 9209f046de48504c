"""Frozen weights in fewer bits: how each format packs a matrix, and reads it back."""
