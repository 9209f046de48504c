"""All that touches ComfyUI's own objects."""
