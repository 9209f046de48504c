"""The names of layers and factors in adapter files."""
