"""FLUX.1: dev (text-to-image) and Kontext (one control picture)."""

from .family import FLUX

__all__ = ["FLUX"]
