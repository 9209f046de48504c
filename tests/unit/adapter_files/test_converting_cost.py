"""What converting and inspecting a file cost, in bytes that are read and made: no clock."""

from collections import Counter

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.made_bytes import MadeBytes
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.families.registry import get_family
from trainer_core.tensors import safetensors_reader

FLUX = get_family("flux").layers.key_map
RANK, WIDTH = 16, 256


def write_lora(path, dtype=torch.bfloat16, blocks=6):
    generator = torch.Generator().manual_seed(5)
    tensors = {
        f"transformer.transformer_blocks.{block}.attn.to_{each}.lora_{half}.weight": torch.randn(
            shape, generator=generator
        ).to(dtype)
        for block in range(blocks)
        for each in ("q", "k", "v", "out.0")
        for half, shape in (("A", (RANK, WIDTH)), ("B", (WIDTH, RANK)))
    }
    # The header of a file of this program, whose base may have had any size.
    save_file(tensors, path, {"adapter_trainer": '{"family": "flux"}'})
    return path, sum(each.numel() * each.element_size() for each in tensors.values())


@pytest.fixture
def read(monkeypatch):
    """Bytes of tensors that are read: of the given file, and of the new one before its name."""
    counts = Counter[str]()
    own = safetensors_reader.TensorFile._bytes

    def counted(self, key, start, size):
        counts["new" if self.path.name.startswith(".writing") else "given"] += size
        return own(self, key, start, size)

    monkeypatch.setattr(safetensors_reader.TensorFile, "_bytes", counted)
    return counts


@pytest.mark.parametrize("layout", ["comfyui", "diffusers", "lycoris", "peft"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_converting_reads_a_file_once_and_once_more_to_prove_it(layout, dtype, read, tmp_path):
    path, size = write_lora(tmp_path / "a.safetensors", dtype)
    target = tmp_path / ("new" if layout == "peft" else "new.safetensors")
    with MadeBytes() as made:
        convert(path, target, layout, FLUX)
    proved = layout in ("comfyui", "lycoris")
    assert read["given"] <= (2.02 if proved else 1.02) * size
    assert read["new"] <= 1.02 * size * proved
    # Of 16 bits: as read (1), in float32 (2), as written (1) and that in float32 again, for what
    # rounding took (2). The proof: what was read (3), and what was written (3). The rest are
    # products with a few vectors.
    least = {torch.bfloat16: 6.0 * proved + 6.0, torch.float32: 2.0 * proved + 1.0}[dtype]
    assert made.count <= (least + 1.2 * proved + 0.02) * size
