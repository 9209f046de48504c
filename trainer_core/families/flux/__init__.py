"""FLUX.1: dev (text-to-image), Kontext (one control image) and Fill (an area of an image)."""
