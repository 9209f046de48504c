"""Krea 2: text-to-image, trained on the raw model and generated with raw or turbo."""
