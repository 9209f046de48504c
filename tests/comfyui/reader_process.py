"""Runs inside ComfyUI's interpreter: load adapter files with ComfyUI's own reader.

Usage: reader_process.py JOBS, with ComfyUI's folder in PYTHONPATH. JOBS is a JSON file: ``base`` is
a file of weights by native key; ``names`` maps a name in the adapter files to a native key, or to
[native key, [axis, start, length]]; ``adapters`` maps an adapter file to the file for its result,
which gets the patched weights, the bypass outputs where ``bypass`` lists the adapter, and in its
header what was not loaded.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from said import Said


def main():
    (jobs_file,) = sys.argv[1:]
    import comfy.lora

    jobs = json.loads(Path(jobs_file).read_text(encoding="utf-8"))
    to_load = {
        name: key if isinstance(key, str) else (key[0], tuple(key[1]))
        for name, key in jobs["names"].items()
    }
    collector = Said()
    for adapter, result in jobs["adapters"].items():
        collector.messages.clear()
        weights = load_file(jobs["base"])
        patches = comfy.lora.load_lora(load_file(adapter), to_load)
        outputs = {}
        for key, patch in patches.items():
            name, offset = (key, None) if isinstance(key, str) else key
            part = weights[name] if offset is None else weights[name].narrow(*offset)
            if adapter in jobs["bypass"]:
                x = torch.linspace(-1, 1, 3 * part.shape[1]).reshape(3, part.shape[1])
                label = name if offset is None else f"{name}@{offset[1]}"
                outputs[f"bypass:{label}"] = patch.h(x, torch.zeros(3, part.shape[0]))
            weights[name] = comfy.lora.calculate_weight(
                [(1.0, patch, 1.0, offset, None)], weights[name].clone(), name
            )
        header = {"messages": json.dumps(collector.messages), "patched": str(len(patches))}
        ready = {k: v.contiguous() for k, v in {**weights, **outputs}.items()}
        save_file(ready, result, header)


if __name__ == "__main__":
    main()
