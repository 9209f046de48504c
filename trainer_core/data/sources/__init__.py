"""Dataset folders: their layouts, and the samples in them."""
