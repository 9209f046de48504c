"""Z-Image: one stream of blocks for text and image (Alibaba Tongyi)."""
