"""FLUX.2: dev, and klein in two sizes, each to generate and to edit."""
