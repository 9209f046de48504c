"""Runs inside ComfyUI's interpreter: CLIP-L with an adapter's file through ComfyUI's Load LoRA.

FOLDER has small text encoders, ``sizes.json`` and ``adapter.safetensors``; it gets
``results.safetensors`` and ``results.json``. The pack's own encoders give the tokens and CLIP-L's
weights, as in a training on the graph.
"""

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from loaded_pack import part
from said import Said


def main(folder):
    import comfy.sd
    import comfy.utils
    import torch
    from comfy.text_encoders import flux
    from safetensors.torch import load_file, save_file

    encoders = part("nodes.host.family_encoders")
    sizes = json.loads((folder / "sizes.json").read_text(encoding="utf-8"))
    target = SimpleNamespace(params={}, clip=flux.flux_clip(), tokenizer=flux.FluxTokenizer)
    names = ("clip_l.safetensors", "t5xxl.safetensors")
    clip = comfy.sd.CLIP(
        target,
        state_dict=[comfy.utils.load_torch_file(str(folder / name)) for name in names],
        model_options={"dtype": torch.float32, **sizes},
    )
    family = part("trainer_core.families.registry").get_family("flux")
    location = SimpleNamespace(variant="generate", reads_tokens=True)
    source = encoders.graph_encoders(family, location, clip, None, 64)
    plain = SimpleNamespace(variant="generate", reads_tokens=False)
    pooled = encoders.graph_encoders(family, plain, clip, None, 64)
    results, facts = {}, {"identities": [source.identity, pooled.identity]}
    captions = json.loads((folder / "captions.json").read_text(encoding="utf-8"))
    denoiser = torch.nn.Module()
    with contextlib.ExitStack() as at_end:
        source.join_text(denoiser, torch.float32, torch.device("cpu"), at_end)
    model = denoiser.text_encoder
    tensors = load_file(folder / "adapter.safetensors")
    with Said() as said:
        _, changed = comfy.sd.load_lora_for_models(None, clip, tensors, 1.0, 1.0)
    facts["messages"] = said.messages
    facts["patched"] = len(changed.patcher.patches)
    for number, caption in enumerate(captions):
        found = source.encode_text(caption)
        facts["conditioning"] = sorted(found)
        results[f"tokens.{number}"] = found["clip_tokens"]
        with torch.no_grad():
            results[f"ours.{number}"] = model(found["clip_tokens"][None])[0]
        results[f"plain.{number}"] = pooled.encode_text(caption)["pooled_text"]
        tokens = changed.tokenize(caption)
        results[f"changed.{number}"] = changed.encode_from_tokens(tokens, return_pooled=True)[1][0]
    ready = {name: each.detach().clone().contiguous() for name, each in results.items()}
    save_file(ready, folder / "results.safetensors")
    (folder / "results.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    with __import__("torch").inference_mode(False):
        main(Path(sys.argv[1]))
