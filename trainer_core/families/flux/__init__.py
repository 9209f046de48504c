"""FLUX.1: dev (text-to-image) and Kontext (one control image)."""
