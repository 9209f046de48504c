"""Wan: clips and images from text."""
