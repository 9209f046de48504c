"""Whether ComfyUI computes with a file what was trained."""
