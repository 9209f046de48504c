"""Algebra on the factors of a layer: rows, fused layers, products, the effective delta."""
