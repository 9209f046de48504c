"""Chroma1: text-to-image with FLUX.1's blocks, and one network for the modulation of all."""
