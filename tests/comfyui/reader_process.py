"""Runs inside ComfyUI's interpreter: load adapter files with ComfyUI's own reader.

JOBS is a JSON file: ``base`` is a file of weights by native key; ``names`` maps a name in the
adapter files to a native key; ``adapters`` maps an adapter file to the file for its result, which
gets the patched weights, and in its header what was not loaded.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from said import Said


def main():
    (jobs_file,) = sys.argv[1:]
    import comfy.lora

    jobs = json.loads(Path(jobs_file).read_text(encoding="utf-8"))
    collector = Said()
    for adapter, result in jobs["adapters"].items():
        collector.messages.clear()
        weights = load_file(jobs["base"])
        patches = comfy.lora.load_lora(load_file(adapter), jobs["names"])
        for name, patch in patches.items():
            weights[name] = comfy.lora.calculate_weight(
                [(1.0, patch, 1.0, None, None)], weights[name].clone(), name
            )
        header = {"messages": json.dumps(collector.messages), "patched": str(len(patches))}
        ready = {k: v.contiguous() for k, v in weights.items()}
        save_file(ready, result, header)


main()
