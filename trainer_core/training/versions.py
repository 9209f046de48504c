"""Versions of what computed a run, for its record and its metadata."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = ("torch", "diffusers", "peft", "accelerate", "transformers", "safetensors", "numpy")


def installed_versions() -> dict[str, str]:
    """List the versions of Python and of the libraries that decide a run's numbers."""
    from ..version import __version__

    found = {"adapter_trainer": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
