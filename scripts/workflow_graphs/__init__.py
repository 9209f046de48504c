"""The shipped workflows as compact descriptions, and what makes ComfyUI's formats of them."""
