"""Combine, extract, resize and inspect adapters."""
