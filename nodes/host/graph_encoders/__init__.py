"""Captions and images encoded by the CLIP and VAE that the user has on the graph.

What ComfyUI's CLIPTextEncode, or its node for editing with a family, gives is what is trained on,
in the names and layout of the headless encoders (`trainer_core.families`).
"""

from __future__ import annotations

from .encoders import GraphEncoders, graph_encoders

__all__ = ["GraphEncoders", "graph_encoders"]
