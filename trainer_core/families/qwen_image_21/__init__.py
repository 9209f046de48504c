"""Qwen-Image 2.1: one block-causal stream of text, reference images and target (Alibaba Qwen)."""
