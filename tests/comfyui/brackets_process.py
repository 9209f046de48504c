"""Reads texts with ComfyUI's tokenizer rules: each as pairs of letters and weight."""

import json
import sys
from pathlib import Path

from comfy.sd1_clip import escape_important, token_weights, unescape_important

folder = Path(sys.argv[1])
read = [
    [
        (unescape_important(part), weight)
        for part, weight in token_weights(escape_important(text), 1)
    ]
    for text in json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
]
(folder / "results.json").write_text(json.dumps(read), encoding="utf-8")
