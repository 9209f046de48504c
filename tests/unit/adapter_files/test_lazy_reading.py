"""An open adapter reads what it is asked for, and nothing stays behind when it is closed."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.adapter_states import KEY_MAP, STATES
from tests.fixtures.peer_files import FLUX_LINEAR1, FLUX_QKV, PEERS, block_diagonal
from trainer_core.adapter_files.read.adapter_file import (
    open_adapter,
    open_file,
    read_adapter,
    read_file,
)
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapters.kinds.registry import layer_scale
from trainer_core.errors import AdapterFileError
from trainer_core.families.registry import get_family
from trainer_core.types import AdapterState

FLUX = get_family("flux").key_map


def spoilt(path, folder, keep=0):
    """The same file with values that are not finite, but for its first bytes of data."""
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little") + keep
    content[begin:] = b"\xff" * (len(content) - begin)
    target = folder / "spoilt.safetensors"
    target.write_bytes(content)
    return target


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.safetensors"
    write_adapter(path, STATES["lokr"], "diffusers", KEY_MAP, {}, "bf16")
    return path


def test_opening_reads_no_values(written, tmp_path):
    path = spoilt(written, tmp_path)
    with open_adapter(path, KEY_MAP) as adapter:
        state = adapter.state
        assert set(state.layers) == set(STATES["lokr"].layers)
        assert len(state.layers) == 4
        assert "head" in state.layers
        assert "tail" not in state.layers
        for name in state.layers:
            outline = adapter.outline(name)
            assert all(tensor.is_meta for tensor in outline.tensors.values())
            assert {tensor.dtype for tensor in outline.tensors.values()} == {torch.bfloat16}
            with pytest.raises(AdapterFileError, match=r"lokr_w\w+ holds a value that is not fini"):
                state.layers[name]


def test_a_layer_reads_only_its_own_values(tmp_path):
    """A layer is whole although the one behind it in the file is not."""
    tensors = {
        "diffusion_model.head.lora_down.weight": torch.ones(2, 12),
        "diffusion_model.head.lora_up.weight": torch.ones(9, 2),
        "diffusion_model.layers.0.final.lora_down.weight": torch.full((2, 20), float("nan")),
        "diffusion_model.layers.0.final.lora_up.weight": torch.ones(12, 2),
    }
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with open_adapter(path, KEY_MAP) as adapter:
        assert torch.equal(adapter.state.layers["head"].tensors["lora_up"], torch.ones(9, 2))
        with pytest.raises(AdapterFileError, match=r"final\.lora_down\.weight holds"):
            adapter.state.layers["blocks.0.out"]
    with pytest.raises(AdapterFileError, match=r"final\.lora_down\.weight holds"):
        read_adapter(path, KEY_MAP)


def test_values_are_copies_in_float32(written):
    with open_adapter(written, KEY_MAP) as adapter:
        layer = adapter.state.layers["head"]
        layer.tensors["lokr_w1"].zero_()
        again = adapter.state.layers["head"]
        assert again.tensors["lokr_w1"].any()
        assert {tensor.dtype for tensor in again.tensors.values()} == {torch.float32}


def open_files():
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself is closed again
            found.add(link.readlink())
    return found


def test_nothing_is_open_after_the_block(written):
    with open_adapter(written, KEY_MAP) as adapter:
        layers = adapter.state.layers
        kept = layers["head"]
        if Path("/proc/self/fd").exists():
            assert written in open_files(), "it would be seen"
    with pytest.raises(AdapterFileError, match="was closed before"):
        layers["head"]
    assert kept.tensors["lokr_w1"].any()
    if Path("/proc/self/maps").exists():
        assert str(written) not in Path("/proc/self/maps").read_text(encoding="utf-8")
        assert written not in open_files()
    written.replace(written.with_name("b.safetensors"))


def test_an_error_of_the_block_passes_through(written):
    for opening in (lambda: open_adapter(written, KEY_MAP), lambda: open_file(written)):
        with pytest.raises(OSError, match="of the caller"), opening():
            raise OSError("of the caller")


def test_a_file_that_becomes_shorter_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "diffusion_model.head.lora_down.weight": torch.ones(9, 9000),
        "diffusion_model.head.lora_up.weight": torch.ones(9000, 9),
    }
    save_file(tensors, path)
    with open_adapter(path, KEY_MAP) as adapter:
        os.truncate(path, path.stat().st_size - 4)
        with pytest.raises(AdapterFileError, match="has become shorter"):
            dict(adapter.state.layers)


def test_the_whole_reading_is_the_lazy_one(written):
    state = read_adapter(written, KEY_MAP)
    with open_adapter(written, KEY_MAP) as adapter:
        assert adapter.state.kind == state.kind
        assert adapter.state.settings == state.settings
        for name, layer in adapter.state.layers.items():
            assert (layer.alpha, layer.rank) == (state.layers[name].alpha, state.layers[name].rank)
            for factor, tensor in layer.tensors.items():
                assert torch.equal(tensor, state.layers[name].tensors[factor])
    file = read_file(written)
    assert isinstance(file.layers, dict)
    assert file.dtypes == ("bfloat16",)


def test_parts_of_a_fused_layer_keep_nothing_of_the_others(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(PEERS["kohya linear1, lora"].tensors, path)
    with open_adapter(path, FLUX) as adapter:
        for name in FLUX_LINEAR1:
            up = adapter.state.layers[name].tensors["lora_up"]
            assert up.untyped_storage().nbytes() == up.numel() * 4


FUSED = {
    "lora": ("lora", (2, 2, 2)),
    "lora of several ranks": ("lora", (1, 3, 2)),
    "loha": ("loha", (2, 2, 2)),
    "loha of several ranks": ("loha", (3, 1, 2)),
    "two parts": ("lora", (2, 0, 2)),
}


@pytest.mark.parametrize("case", FUSED)
def test_what_is_written_fused_comes_back_as_it_was(case, tmp_path):
    kind, ranks = FUSED[case]
    save_file(block_diagonal(kind, ranks).tensors, tmp_path / "a.safetensors")
    state = read_adapter(tmp_path / "a.safetensors", FLUX)
    assert len(state.layers) == len([rank for rank in ranks if rank])
    path = tmp_path / "b.safetensors"
    write_adapter(path, state, "kohya", FLUX, {})
    with open_file(path) as file:
        assert len(file.layers) == 1
    again = read_adapter(path, FLUX)
    assert_same(again, state)


def assert_same(again: AdapterState, state: AdapterState):
    assert set(again.layers) == set(state.layers)
    for name, layer in state.layers.items():
        found = again.layers[name]
        assert found.rank == layer.rank
        assert layer_scale(state.kind, found) == pytest.approx(
            layer_scale(state.kind, layer), rel=1e-6
        )
        assert set(found.tensors) == set(layer.tensors)
        assert all(torch.equal(found.tensors[n], t) for n, t in layer.tensors.items())


def test_parts_that_share_a_factor_stay_as_they_are(tmp_path):
    """From one fused file to another: no rank grows on the way."""
    peer = PEERS["kohya qkv, lora"]
    save_file(peer.tensors, tmp_path / "a.safetensors")
    state = read_adapter(tmp_path / "a.safetensors", FLUX)
    assert {layer.rank for layer in state.layers.values()} == {2}
    write_adapter(tmp_path / "b.safetensors", state, "kohya", FLUX, {})
    again = read_adapter(tmp_path / "b.safetensors", FLUX)
    assert_same(again, state)
    assert set(again.layers) == set(FLUX_QKV)


# A process of its own: memory that earlier tests gave back to it would hide a peak.
_PROCESS = """
import sys
from pathlib import Path
import torch
from trainer_core.families.registry import get_family
from trainer_core.adapter_files.read.adapter_file import open_adapter, read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter

path, names = Path(sys.argv[1]), get_family("flux").key_map

def status(name):
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

def peak(action):
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
    before = status("VmRSS")
    action()
    return (status("VmHWM") - before) / 1024

def one_by_one():
    with open_adapter(path, names) as adapter:
        for name in adapter.state.layers:
            adapter.outline(name)
            adapter.state.layers[name]

one_by_one()  # everything is imported
inspecting, whole = peak(lambda: inspect_adapter(path)), peak(lambda: read_adapter(path, names))
print(peak(one_by_one), inspecting, whole)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it measures as Linux counts")
def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path):
    path, megabytes = tmp_path / "large.safetensors", 96
    tensors = {}
    for number in range(24):  # 4 MB each in bfloat16
        layer = f"lora_unet_double_blocks_{number}_img_attn_qkv"
        tensors[f"{layer}.lora_down.weight"] = torch.ones(512, 1024, dtype=torch.bfloat16)
        tensors[f"{layer}.lora_up.weight"] = torch.ones(3072, 512, dtype=torch.bfloat16)
    save_file(tensors, path)
    assert path.stat().st_size >= megabytes * 2**20
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", _PROCESS, str(path)]
    printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    lazily, inspecting, whole = map(float, printed.split())
    assert lazily < 0.4 * megabytes
    assert inspecting < 0.8 * megabytes
    assert whole > 1.5 * megabytes, "it measures"
