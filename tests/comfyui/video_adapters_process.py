"""Runs inside ComfyUI's interpreter: files of other trainers for tiny models of videos, converted.

FOLDER has ``cases.json``, a list of model and spelling, and gets ``results.json``: what ComfyUI
loads of each file as it is and converted, and what the trainer's proof says of it.
"""

import json
import re
import sys
from pathlib import Path

import torch
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

# How Diffusers calls ComfyUI's layers, as its scripts that convert whole models do it.
DIFFUSERS = {
    "wan": [
        (r"self_attn\.([qkv])$", r"attn1.to_\1"),
        (r"cross_attn\.([qkv])$", r"attn2.to_\1"),
        (r"self_attn\.o$", "attn1.to_out.0"),
        (r"cross_attn\.o$", "attn2.to_out.0"),
        (r"cross_attn\.([kv])_img$", r"attn2.add_\1_proj"),
        (r"ffn\.0$", "ffn.net.0.proj"),
        (r"ffn\.2$", "ffn.net.2"),
        (r"(vace_blocks.*)\.before_proj", r"\1.proj_in"),
        (r"(vace_blocks.*)\.after_proj", r"\1.proj_out"),
        (r"(text|time)_embedding\.0", r"condition_embedder.\1_embedder.linear_1"),
        (r"(text|time)_embedding\.2", r"condition_embedder.\1_embedder.linear_2"),
        (r"time_projection\.1", "condition_embedder.time_proj"),
        (r"img_emb\.proj\.1", "condition_embedder.image_embedder.ff.net.0.proj"),
        (r"img_emb\.proj\.3", "condition_embedder.image_embedder.ff.net.2"),
        (r"head\.head", "proj_out"),
    ],
    "hunyuan_video": [
        (r"^double_blocks", "transformer_blocks"),
        (r"^single_blocks", "single_transformer_blocks"),
        (r"img_attn\.proj", "attn.to_out.0"),
        (r"txt_attn\.proj", "attn.to_add_out"),
        (r"img_mod\.lin", "norm1.linear"),
        (r"txt_mod\.lin", "norm1_context.linear"),
        (r"img_mlp\.0", "ff.net.0.proj"),
        (r"img_mlp\.2", "ff.net.2"),
        (r"txt_mlp\.0", "ff_context.net.0.proj"),
        (r"txt_mlp\.2", "ff_context.net.2"),
        (r"modulation\.lin", "norm.linear"),
        (r"linear2", "proj_out"),
        (
            r"^txt_in\.individual_token_refiner\.blocks",
            "context_embedder.token_refiner.refiner_blocks",
        ),
        (r"(refiner_blocks.*)\.self_attn\.proj", r"\1.attn.to_out.0"),
        (r"(refiner_blocks.*)\.mlp\.0", r"\1.ff.net.0.proj"),
        (r"(refiner_blocks.*)\.mlp\.2", r"\1.ff.net.2"),
        (r"(refiner_blocks.*)\.adaLN_modulation\.1", r"\1.norm_out.linear"),
        (r"^txt_in\.input_embedder", "context_embedder.proj_in"),
        (r"^txt_in\.t_embedder", "context_embedder.time_text_embed.timestep_embedder"),
        (r"^txt_in\.c_embedder", "context_embedder.time_text_embed.text_embedder"),
        (r"^time_in", "time_text_embed.timestep_embedder"),
        (r"^vector_in", "time_text_embed.text_embedder"),
        (r"^guidance_in", "time_text_embed.guidance_embedder"),
        (r"in_layer", "linear_1"),
        (r"out_layer", "linear_2"),
        (r"^img_in\.proj", "x_embedder.proj"),
        (r"^vision_in\.proj\.1", "image_embedder.linear_1"),
        (r"^vision_in\.proj\.3", "image_embedder.linear_2"),
        (r"^final_layer\.linear", "proj_out"),
    ],
    "ltx_video": [
        (r"^(audio_)?patchify_proj", r"\1proj_in"),
        (r"^(audio_)?adaln_single", r"\1time_embed"),
        (r"^av_ca_(video|audio)_scale_shift_adaln_single", r"av_cross_attn_\1_scale_shift"),
        (r"^av_ca_a2v_gate_adaln_single", "av_cross_attn_video_a2v_gate"),
        (r"^av_ca_v2a_gate_adaln_single", "av_cross_attn_audio_v2a_gate"),
    ],
    "kandinsky5": [],
    "cosmos_predict2": [
        (r"t_embedder\.1", "time_embed.t_embedder"),
        (r"^blocks", "transformer_blocks"),
        (r"adaln_modulation_self_attn\.", "norm1.linear_"),
        (r"adaln_modulation_cross_attn\.", "norm2.linear_"),
        (r"adaln_modulation_mlp\.", "norm3.linear_"),
        (r"self_attn", "attn1"),
        (r"cross_attn", "attn2"),
        (r"([qkv])_proj", r"to_\1"),
        (r"output_proj", "to_out.0"),
        (r"mlp\.layer1", "ff.net.0.proj"),
        (r"mlp\.layer2", "ff.net.2"),
        (r"^x_embedder\.proj\.1", "patch_embed.proj"),
        (r"final_layer\.adaln_modulation\.", "norm_out.linear_"),
        (r"final_layer\.linear", "proj_out"),
    ],
}
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
