"""`doctor` lists the layers of any base, and those that a run adapts and leaves out."""

import json
from itertools import chain

import pytest
import torch
from fixtures.native_files import native_state
from safetensors.torch import save_file

from trainer_core.cli import main

STRANGER = {
    **{f"blocks.{n}.attn1.to_{part}.weight": (8, 8) for n in range(3) for part in "qk"},
    **{f"blocks.{n}.ffn.0.weight": (16, 8) for n in range(3)},
    **{f"blocks.{n}.norm.weight": (8,) for n in range(3)},
    "patch_embedding.weight": (8, 4, 1, 2, 2),
    "patch_embedding.bias": (8,),
}


def report(capsys, *words: str) -> dict:
    assert main(["doctor", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(params=["file", "folder"])
def stranger(request, tmp_path):
    """A base of a class that no family knows."""
    tensors = {name: torch.zeros(shape) for name, shape in STRANGER.items()}
    if request.param == "file":
        save_file(tensors, tmp_path / "stranger.safetensors")
        return tmp_path / "stranger.safetensors"
    folder = tmp_path / "base" / "transformer"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text('{"_class_name": "StrangerTransformer3DModel"}')
    (folder.parent / "model_index.json").write_text('{"_class_name": "StrangerPipeline"}')
    return folder.parent


def test_an_unknown_base_is_listed_with_what_to_adapt_and_where_to_train_it(stranger, capsys):
    found = report(capsys, str(stranger), "--layers")
    assert found["blocks"] == {"blocks": 3}
    assert found["layers"] == [
        "3 x blocks.*.attn1.to_k: 8 x 8",
        "3 x blocks.*.attn1.to_q: 8 x 8",
        "3 x blocks.*.ffn.*: 16 x 8",
        "1 x patch_embedding: 8 x 4 x 1 x 2 x 2",
    ]
    assert found["parameters"] == 9 * 8 * 8 + 3 * 8 * 8 + 3 * 8 + 8 * 16 + 8
    assert found["targets"] == {
        "blocks": [r"blocks\.\d+\..*"],
        "attention": [r"blocks\.\d+\.attn1\.to_k", r"blocks\.\d+\.attn1\.to_q"],
    }
    assert "Base From Model" in found["family"]
    assert found.get("class") == ("StrangerTransformer3DModel" if stranger.is_dir() else None)


def test_a_file_with_comfyuis_names_is_listed_as_a_run_adapts_it(tmp_path, capsys):
    path = tmp_path / "flux.safetensors"
    save_file({name: each.contiguous() for name, each in native_state("flux").items()}, path)
    found = report(capsys, str(path), "--layers")
    assert set(found["blocks"]) == {"transformer_blocks", "single_transformer_blocks"}
    assert r"transformer_blocks\.\d+\.attn\.to_q" in found["targets"]["attention"]


NOT_WHOLE = {
    "one of its files": ("-00001-of-00002", "attn.to_q.weight", "several files of a model"),
    "weights of 4 bits": ("", "attn.to_q.weight.absmax", "bitsandbytes"),
}


@pytest.mark.parametrize("case", NOT_WHOLE)
def test_shapes_that_are_not_those_of_the_layers_are_not_listed(case, tmp_path, capsys):
    ending, name, found = NOT_WHOLE[case]
    path = tmp_path / f"diffusion_pytorch_model{ending}.safetensors"
    save_file({f"blocks.0.{name}": torch.zeros(8, 8)}, path)
    assert main(["doctor", str(path if ending else tmp_path), "--layers"]) == 2
    assert found in capsys.readouterr().err


@pytest.mark.exhaustive
def test_every_layer_is_adapted_or_left_out(capsys):
    targets = r"adapter.targets=['.*to_q', '.*\.0\..*to_q']"
    words = ("dataset.path=trainer_core/assets/demo-generate", "adapter.rank=4")
    adapter = report(capsys, *words, "adapter.kind=lora", targets)["run"]["adapter"]
    names = [f"transformer_blocks.{n}.attn.to_q" for n in range(5)]
    assert list(adapter["adapted"]) == names
    assert adapter["adapted"][names[0]] == {
        "shape": [128, 128],
        "rank": 4,
        "parameters": 2 * 4 * 128,
        "factors": {"lora_up": [128, 4], "lora_down": [4, 128]},
    }
    assert adapter["matched_again"] == [names[0]]
    counts = [int(line.split(" x ")[0]) for line in adapter["not_chosen"]]
    assert sum(chain(counts, [len(names)])) == 76
    assert main(["doctor", *words, "adapter.kind=lora", targets]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "5 x transformer_blocks.*.attn.to_q: 128 x 128, rank 4, 1 024 (lora_down 4 x " in text
