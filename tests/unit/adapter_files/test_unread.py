"""What a file holds beside the factors is named for what it is, and left out only on purpose."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.fixtures.peer_files import (
    FLUX_QKV,
    IN,
    PEERS,
    PEFT_ENDINGS,
    QWEN,
    ROWS,
    Draw,
    delta,
    one,
)
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.verify.load_proof import prove
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.errors import AdapterFileError
from trainer_core.families.registry import FAMILIES

FLUX, QWEN_MAP = FAMILIES["flux"].layers.key_map, FAMILIES["qwen_image"].layers.key_map
LORA = one(f"transformer.{QWEN}", QWEN, "qwen_image", "diffusers", "lora", None, PEFT_ENDINGS)
DELTA = LORA.deltas[QWEN]
UP, DOWN = ".lora_up.weight", ".lora_down.weight"


def write(path, tensors, header=None):
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path, header)
    return path


def text_encoder(prefix):
    name = f"{prefix}text_model_encoder_layers_0_self_attn_q_proj"
    return {f"{name}{UP}": torch.ones(4, 2), f"{name}{DOWN}": torch.ones(2, 4)}


BESIDE = {
    # What lies beside the factors, and how it is named.
    "kohya's first text encoder": (text_encoder("lora_te1_"), "of a text encoder"),
    "kohya's T5": (text_encoder("lora_te3_"), "of a text encoder"),
    "diffusers": (
        {"text_encoder.text_model.encoder.layers.0.q_proj.lora_A.weight": torch.ones(2, 4)},
        "of a text encoder",
    ),
    "comfyui": (
        {"text_encoders.clip_l.transformer.text_model.x.lora_up.weight": torch.ones(4, 2)},
        "of a text encoder",
    ),
    "embeddings": ({"bundle_emb.word.clip_l": torch.ones(2, 4)}, "of a text encoder"),
    "a prior": ({"lora_prior_unet_down_blocks_0.alpha": torch.ones(())}, "of another model"),
    "another model": ({"vae.decoder.conv_in.weight": torch.ones(4, 4)}, "of another model"),
    "a LoRA's bias": ({f"transformer.{QWEN}.lora_B.bias": torch.ones(ROWS)}, "bias that was"),
    "PEFT's bias": ({f"transformer.{QWEN}.base_layer.bias": torch.ones(ROWS)}, "whole bias"),
    "PEFT's modules_to_save": ({"transformer.proj_out.weight": torch.ones(4, 4)}, "whole weight"),
    "of no program": ({"diffusion_model.blocks.0.odd": torch.ones(1, 6, 4)}, "neither ComfyUI"),
    "an embedding": ({"transformer.x.lora_embedding_A": torch.ones(2, 4)}, "embedding's LoRA"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_lies_beside_is_named_and_dropped_on_purpose(case, tmp_path):
    others, what = BESIDE[case]
    path, target = write(tmp_path / "a.safetensors", {**LORA.tensors, **others}), tmp_path / "b"
    first = min(others)
    with pytest.raises(AdapterFileError, match=what) as caught:
        read_adapter(path, QWEN_MAP)
    assert repr(first) in caught.value.found
    assert "--extras drop" in caught.value.remedy
    with pytest.raises(AdapterFileError, match=what):
        convert(path, tmp_path / "b.safetensors", "comfyui", QWEN_MAP)
    assert not target.exists()
    report = inspect_adapter(path, QWEN_MAP)
    ((named, (count, key)),) = report.unread.items()
    assert what in named
    assert (count, key) == (len(others), first)
    assert any(what in note for note in report.notes)
    target = tmp_path / "b.safetensors"
    done = convert(path, target, "comfyui", QWEN_MAP, extras="drop")
    assert set(done.dropped) == set(others)
    (note,) = [note for note in done.notes if "Left out" in note]
    assert what in note
    assert first in note
    state = read_adapter(target, QWEN_MAP)
    assert relative(layer_delta("lora", state.layers[QWEN]), DELTA) < 1e-6


@pytest.mark.parametrize(
    ("ending", "what"),
    [
        ("oft_R.weight", "OFT or BOFT"),
        ("rescale", "OFT with a rescale"),
        ("a1.weight", "GLoRA"),
        ("on_input", "IA3"),
        ("reshape_weight", "change of the layer's size"),
        ("lokr_t1", "LoKr core"),
        ("lora_down.other.weight", "unknown key"),
    ],
)
def test_what_changes_the_factors_meaning_is_named_and_never_dropped(ending, what, tmp_path):
    key = f"transformer.{QWEN}.{ending}"
    path = write(tmp_path / "a.safetensors", {**LORA.tensors, key: torch.ones(2, 2)})
    with pytest.raises(AdapterFileError, match=what) as caught:
        read_adapter(path, QWEN_MAP)
    assert repr(key) in caught.value.found
    with pytest.raises(AdapterFileError, match="unknown key"):
        convert(path, tmp_path / "b.safetensors", "comfyui", QWEN_MAP, extras="drop")


class Small(nn.Module):
    """Two of Qwen-Image's layers and a norm, by their paths."""

    def __init__(self):
        super().__init__()
        parts = {"to_q": nn.Linear(IN, ROWS), "norm_q": nn.LayerNorm(ROWS)}
        block = nn.ModuleDict({"attn": nn.ModuleDict(parts)})
        self.transformer_blocks = nn.ModuleList([block])
        self.proj_out = nn.Linear(IN, ROWS)

    def forward(self, x):
        return x


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_what_peft_saves_besides_is_named(bias, tmp_path):
    from peft import LoraConfig, get_peft_model

    options = {"bias": bias, "modules_to_save": ["proj_out"], "init_lora_weights": False}
    get_peft_model(Small(), LoraConfig(r=2, target_modules=["to_q"], **options)).save_pretrained(
        tmp_path / "given"
    )
    report = inspect_adapter(tmp_path / "given", QWEN_MAP)
    found = {what.split(",")[0] for what in report.unread}
    assert found == {"a whole bias", "a whole weight"}
    done = convert(tmp_path / "given", tmp_path / "b", "peft", QWEN_MAP, extras="drop")
    given = load_file(tmp_path / "given" / "adapter_model.safetensors")
    assert set(load_file(tmp_path / "b" / "adapter_model.safetensors")) | set(done.dropped) == set(
        given
    )


@pytest.fixture
def lycoris_file(tmp_path, monkeypatch):
    """LyCORIS's full on both Linears and its train_norm, with random values."""
    from lycoris import LycorisNetwork, create_lycoris

    algorithms = {"LayerNorm": {"algo": "norm"}, "Linear": {"algo": "full"}}
    # What a preset changes in LyCORIS stays for the whole process.
    monkeypatch.setattr(LycorisNetwork, "TARGET_REPLACE_MODULE", [*algorithms])
    monkeypatch.setattr(LycorisNetwork, "TARGET_REPLACE_NAME", [".*"])
    monkeypatch.setattr(LycorisNetwork, "MODULE_ALGO_MAP", algorithms)
    module = Small()
    network = create_lycoris(module, 1.0, linear_dim=2, algo="full", train_norm=True)
    network.apply_to()
    draw = Draw(1)
    values = {key: draw(*each.shape) for key, each in network.state_dict().items()}
    return write(tmp_path / "a.safetensors", values)


def test_lycoris_full_and_train_norm_are_kept_named_or_dropped(lycoris_file, tmp_path):
    path, target = lycoris_file, tmp_path / "b.safetensors"
    given = load_file(path)
    convert(path, target, "comfyui", QWEN_MAP)
    names = {
        "lycoris_transformer_blocks_0_attn_to_q": "transformer_blocks.0.attn.to_q",
        "lycoris_transformer_blocks_0_attn_norm_q": "transformer_blocks.0.attn.norm_q",
        "lycoris_proj_out": "proj_out",
    }
    found = load_file(target)
    assert len(found) == len(given) == 6
    for key, tensor in given.items():
        name, _, ending = key.rpartition(".")
        assert torch.equal(found[f"diffusion_model.{names[name]}.{ending}"], tensor)
    notes = " ".join(inspect_adapter(path, QWEN_MAP).notes)
    assert "LyCORIS's full" in notes
    assert "LyCORIS's train_norm" in notes
    both = write(tmp_path / "c.safetensors", {**given, **PEERS["lycoris, lora"].tensors})
    done = convert(both, target, "diffusers", QWEN_MAP, extras="drop", overwrite=True)
    assert len(done.dropped) == 6
    assert any("train_norm" in note for note in done.notes)


def test_differences_of_parts_become_one_of_the_fused_layer(tmp_path):
    draw, path = Draw(2), tmp_path / "a.safetensors"
    names = [f"lycoris_{name.replace('.', '_')}" for name in FLUX_QKV]
    parts = {f"{name}.diff": draw(ROWS, IN) for name in names}
    biases = {f"{names[2]}.diff_b": draw(ROWS)}
    last = {"lycoris_norm_out_linear.diff": draw(2 * ROWS, IN)}
    write(path, {**parts, **biases, **last})
    extras = read_adapter(path, FLUX).extras
    native = extras["double_blocks.3.img_attn.qkv"]
    assert torch.equal(native["diff"], torch.cat([*parts.values()]))
    zeros = torch.zeros(2 * ROWS)
    assert torch.equal(native["diff_b"], torch.cat([zeros, *biases.values()]))
    turned = torch.cat([*reversed(last["lycoris_norm_out_linear.diff"].chunk(2))])
    assert torch.equal(extras["final_layer.adaLN_modulation.1"]["diff"], turned)
    convert(path, tmp_path / "b.safetensors", "comfyui", FLUX)
    assert prove(tmp_path / "b.safetensors", FLUX).ok
    del parts[f"{names[0]}.diff"]
    assert prove(write(path, {**parts, **last}), FLUX).ok
    with pytest.raises(AdapterFileError, match="set_weight of parts of"):
        read_adapter(write(path, {f"{names[0]}.set_weight": draw(ROWS, IN)}), FLUX)
    odd = {f"{names[0]}.diff": draw(ROWS, IN), f"{names[1]}.diff": draw(ROWS + 1, IN)}
    with pytest.raises(AdapterFileError, match="diff of parts of"):
        read_adapter(write(path, odd), FLUX)


def test_xlabs_loras_are_read_as_diffusers_reads_them(tmp_path):
    peer = PEERS["xlabs"]
    path = write(tmp_path / "a.safetensors", peer.tensors)
    assert adapter_family(path, any_size=True).name == "flux"
    convert(path, tmp_path / "b.safetensors", "diffusers", FLUX)
    from diffusers.loaders.lora_conversion_utils import _convert_xlabs_flux_lora_to_diffusers

    theirs = _convert_xlabs_flux_lora_to_diffusers(dict(peer.tensors))
    ours = load_file(tmp_path / "b.safetensors")
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    # ComfyUI knows such a file by its last blocks alone.
    assert not prove(path, FLUX).ok
    assert prove(write(path, PEERS["xlabs, last blocks"].tensors), FLUX).ok


def test_peft_names_without_their_configuration_are_converted_with_a_note(tmp_path):
    name, path = f"base_model.model.{QWEN}", tmp_path / "a.safetensors"
    factors = Draw(4).factors("lora")
    tensors = {f"{name}.{PEFT_ENDINGS[factor]}": tensor for factor, tensor in factors.items()}
    write(path, tensors)
    with pytest.raises(AdapterFileError, match=r"adapter_config\.json") as caught:
        read_adapter(path, QWEN_MAP)
    assert "alpha = rank" in caught.value.remedy
    assert any("alpha = rank" in note for note in inspect_adapter(path, QWEN_MAP).notes)
    done = convert(path, tmp_path / "b.safetensors", "comfyui", QWEN_MAP)
    assert any("alpha = rank" in note for note in done.notes)
    state = read_adapter(tmp_path / "b.safetensors", QWEN_MAP)
    wanted = delta("lora", factors, 2.0, 2)
    assert relative(layer_delta("lora", state.layers[QWEN]), wanted) < 1e-6
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    done = convert(path, tmp_path / "c.safetensors", "comfyui", QWEN_MAP)
    assert not any("alpha = rank" in note for note in done.notes)
