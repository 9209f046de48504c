"""Runs inside ComfyUI's interpreter: files of other trainers for tiny models of videos, converted.

FOLDER has ``cases.json``, a list of model and spelling, and gets ``results.json``: what ComfyUI
loads of each file as it is and converted, and what the trainer's proof says of it.
"""

import json
import re
import sys
from pathlib import Path

import torch
import yaml
from loaded_pack import part
from safetensors.torch import load_file, save_file
from said import Said

RANK, ALPHA = 2, 3.0
WORDS = {
    "wan21_i2v": "wan",
    "wan21_vace": "wan",
    "hunyuan_video": "hunyuan_video",
    "hunyuan_video15": "hunyuan_video",
    "ltxv": "ltx_video",
    "ltxav": "ltx_video",
    "kandinsky5": "kandinsky5",
    "cosmos_predict2": "cosmos_predict2",
}
SOUND = {
    "in_channels": 128,
    "audio_in_channels": 128,
    "num_layers": 2,
    "caption_channels": 32,
    "cross_attention_dim": 32,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "audio_cross_attention_dim": 32,
    "audio_attention_head_dim": 16,
    "audio_num_attention_heads": 2,
    "apply_gated_attention": True,
}
"""Of a tiny LTX-2."""

DIFFUSERS = yaml.safe_load(
    Path(__file__).with_name("video_layers.yaml").read_text(encoding="utf-8")
)
# Fused layers of HunyuanVideo to what other programs have in their rows.
FUSED = {
    r"(double_blocks\.\d+)\.img_attn\.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    r"(double_blocks\.\d+)\.txt_attn\.qkv": (
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    ),
    r"(single_blocks\.\d+)\.linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    r"(txt_in\.individual_token_refiner\.blocks\.\d+)\.self_attn\.qkv": (
        *("attn.to_q", "attn.to_k", "attn.to_v"),
    ),
}


def tencents(name):
    """As Tencent's own code calls the layer, and diffusion-pipe's files."""
    for own, theirs in (
        ("_mod.lin", "_mod.linear"),
        ("_attn.qkv", "_attn_qkv"),
        ("_attn.proj", "_attn_proj"),
        ("mlp.0", "mlp.fc1"),
        ("mlp.2", "mlp.fc2"),
        (".modulation.lin", ".modulation.linear"),
    ):
        name = name.replace(own, theirs)
    return name


def renamed(word, name):
    for pattern, other in DIFFUSERS[word]:
        name = re.sub(pattern, other, name)
    return name


def factors(names, shapes, source):
    """Random factors of every layer."""
    return {
        name: (
            torch.randn(RANK, *shapes[name][1:], generator=source) * 0.1,
            torch.randn(shapes[name][0], RANK, *(1 for _ in shapes[name][2:]), generator=source),
        )
        for name in names
    }


def change(down, up, scale):
    return scale * (up.flatten(1) @ down.flatten(1)).reshape(len(up), *down.shape[1:])


def divided(word, layers, spelling, wanted):
    """The layers as another program has them: fused ones of HunyuanVideo in parts of their own.

    ``wanted`` is what each weight is to change by.
    """
    source = torch.Generator().manual_seed(11)
    for name, (down, up) in layers.items():
        parts = [
            (found[1], own)
            for pattern, own in FUSED.items()
            if word == "hunyuan_video" and (found := re.fullmatch(pattern, name))
        ]
        if spelling == "musubi parts":
            parts = [(block, own) for block, own in parts if "_attn." in name and "double" in name]
        if spelling not in ("diffusers", "onetrainer", "musubi parts") or not parts:
            yield name, None, down, up
            continue
        block, own = parts[0]
        width = down.shape[1]
        rows = up.split([width] * 3 + ([len(up) - 3 * width] if len(own) > 3 else []))
        changes = []
        for other, second, letter in zip(own, rows, "qkvm"[: len(own)], strict=True):
            first = torch.randn(RANK, width, generator=source) * 0.1
            changes.append(change(first, second, SCALES[spelling]))
            their = (
                f"{name.removesuffix('.qkv')}_{letter}"
                if spelling == "musubi parts"
                else f"{renamed(word, block)}.{other}"
            )
            yield name, their, first, second
        wanted[name] = torch.cat(changes)


SCALES = {
    "musubi": ALPHA / RANK,
    "musubi parts": ALPHA / RANK,
    "ai-toolkit": 1.0,
    "diffusers": 1.0,
    "diffsynth": 1.0,
    "diffsynth bare": 1.0,
    "fun": ALPHA / RANK,
    "fun part": ALPHA / RANK,
    "lightx2v": 1.0,
    "tencent": 1.0,
    "onetrainer": ALPHA / RANK,
}


def key_of(spelling, word, name):
    """What stands before the ending, and both endings."""
    flat = name.replace(".", "_")
    ab, kohya = ("lora_A.weight", "lora_B.weight"), ("lora_down.weight", "lora_up.weight")
    default = ("lora_A.default.weight", "lora_B.default.weight")
    return {
        "musubi": (f"lora_unet_{flat}", kohya),
        "musubi parts": (f"lora_unet_{flat}", kohya),
        "ai-toolkit": (f"diffusion_model.{name}", ab),
        "diffusers": (f"transformer.{renamed(word, name)}", ab),
        "diffsynth": (f"pipe.dit.{name}", default),
        "diffsynth bare": (name, default),
        "fun": (f"lora_unet__{flat}", kohya),
        "fun part": (f"lora_unet__{flat}", kohya),
        "lightx2v": (f"diffusion_model.{name}", kohya),
        "tencent": (f"transformer.{tencents(name)}", ab),
        "onetrainer": (f"lora_transformer_{renamed(word, name).replace('.', '_')}", kohya),
    }[spelling]


def written(model, spelling, word):
    """A file of a spelling, and by ComfyUI's names what it is to change each tensor by."""
    own = model.diffusion_model.state_dict()
    shapes = {n.removesuffix(".weight"): t.shape for n, t in own.items() if n.endswith(".weight")}
    names = [n for n, shape in shapes.items() if len(shape) == 2 and n != "cond_type_embedding"]
    names = [n for n in names if "connector" not in n]
    if word == "wan":
        names.append("patch_embedding")
    if spelling in ("diffusers", "onetrainer"):
        # Diffusers has the halves of this layer the other way round.
        names = [n for n in names if n != "final_layer.adaLN_modulation.1"]
    if spelling == "fun part":
        names = [n for n in names if "cross_attn" not in n]
    source = torch.Generator().manual_seed(3)
    tensors, wanted, scale = {}, {}, SCALES[spelling]
    for name, their, down, up in divided(word, factors(names, shapes, source), spelling, wanted):
        before, endings = key_of(spelling, word, their or name)
        if their and spelling == "diffusers":
            before = f"transformer.{their}"
        if their and spelling == "onetrainer":
            before = f"lora_transformer_{their.replace('.', '_')}"
        tensors |= {f"{before}.{endings[0]}": down, f"{before}.{endings[1]}": up.contiguous()}
        if scale != 1:
            tensors[f"{before}.alpha"] = torch.tensor(ALPHA)
        wanted.setdefault(name, change(down, up, scale))
    wanted = {f"{name}.weight": each for name, each in wanted.items()}
    if spelling == "lightx2v":
        add_differences(own, tensors, wanted, source)
    return tensors, wanted


def add_differences(own, tensors, wanted, source):
    """Differences of biases, norms and modulations beside the factors."""
    for name, tensor in own.items():
        layer, _, kind = name.rpartition(".")
        ending = {"bias": ".diff_b", "weight": ".diff", "modulation": ".diff_m"}[kind]
        if name not in wanted:
            wanted[name] = torch.randn(tensor.shape, generator=source)
            tensors[f"diffusion_model.{layer}{ending}"] = wanted[name]


def loaded(path, model, wanted, said):
    """What ComfyUI makes of a file."""
    import comfy.lora
    import comfy.lora_convert

    said.messages.clear()
    table = comfy.lora.model_lora_keys_unet(model, {})
    patches = comfy.lora.load_lora(comfy.lora_convert.convert_lora(load_file(path)), table)
    unread = [each.rpartition(": ")[2] for each in said.messages]
    largest, missing = 0.0, []
    for name, own in wanted.items():
        key = f"diffusion_model.{name}"
        if key not in patches:
            missing.append(name)
            continue
        weight = torch.zeros(own.shape)
        made = comfy.lora.calculate_weight([(1.0, patches[key], 1.0, None, None)], weight, key)
        largest = max(largest, float((made - own).norm() / own.norm()))
    return {"unread": sorted(unread), "missing": missing, "largest": largest}


def looked_at(name, spelling, folder, said):
    from tiny_models.denoisers import bare_model
    from tiny_models.sizes import BEGINNING, TINY, TinySizes

    adapter_family = part("trainer_core.bases.adapter_family").adapter_family
    convert = part("trainer_core.adapter_files.convert.convert").convert
    proof = part("trainer_core.adapter_files.verify.load_proof")
    key_map_of = part("trainer_core.families.graph_model_layers").key_map
    read_adapter = part("trainer_core.adapter_files.read.read_adapter").read_adapter
    tiny = {**TINY, **BEGINNING, "ltxav": TinySizes("LTXAV", SOUND, "", "")}
    model, word = bare_model(tiny[name], "fp32"), WORDS[name]
    tensors, wanted = written(model, spelling, word)
    path = folder / f"{name} {spelling}.safetensors"
    save_file(tensors, path)
    key_map = adapter_family(path, word).layers.key_map
    shapes = {n: tuple(t.shape) for n, t in model.diffusion_model.state_dict().items()}
    target = folder / f"{name} {spelling} converted.safetensors"
    convert(path, target, "comfyui", key_map)
    before, after = (proof.prove(each, key_map, shapes) for each in (path, target))
    on_graph = read_adapter(path, key_map_of(model.diffusion_model))
    return {
        "tensors": len(tensors),
        "as it is": loaded(path, model, wanted, said),
        "proof of it": sorted(n for n, each in before.tensors.items() if each.outcome != "loaded"),
        "converted": loaded(target, model, wanted, said),
        "proof": [after.ok, after.largest],
        "layers on the graph": len(on_graph.layers),
        "changed": len(wanted),
    }


def main():
    (folder,) = map(Path, sys.argv[1:])
    said = Said()
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    found = {" / ".join(case): looked_at(*case, folder, said) for case in cases}
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")


main()
