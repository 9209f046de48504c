"""Whatever bytes a file holds, only the trainer's own error comes out of the reader."""

import json
import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.fixtures.adapter_states import KEY_MAP, STATES
from tests.fixtures.peer_files import PEERS
from trainer_core.adapter_files.read.read_adapter import open_adapter, read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.errors import AdapterFileError
from trainer_core.families.registry import get_family

FLUX = get_family("flux").layers.key_map
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "80"))
BRIEFLY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_in_every_way(path, key_map):
    """Whether it could be read; anything but our own error fails the test."""
    refused = []
    for read in (read_adapter, inspect_adapter, _outline_all):
        try:
            read(path, key_map)
        except AdapterFileError as error:
            refused.append(error)
    assert all(error.found and error.remedy for error in refused)
    return not refused


def _outline_all(path, key_map):
    with open_adapter(path, key_map) as adapter:
        for name in adapter.state.layers:
            adapter.outline(name)


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory):
    """A few files of different spelling, as bytes, with the names that they are for."""
    folder = tmp_path_factory.mktemp("whole")
    write_adapter(folder / "own", STATES["lokr"], "comfyui", KEY_MAP, {"note": "x"})
    files = [((folder / "own").read_bytes(), KEY_MAP)]
    for title in ("kohya split_qkv", "comfyui Train LoRA, loha", "diffusers pipeline's header"):
        peer = PEERS[title]
        save_file(peer.tensors, folder / "peer", peer.metadata)
        files.append(((folder / "peer").read_bytes(), get_family(peer.family).layers.key_map))
    return files


def test_the_whole_files_can_be_read(whole_files, tmp_path):
    for content, key_map in whole_files:
        (tmp_path / "a").write_bytes(content)
        assert read_in_every_way(tmp_path / "a", key_map)


@BRIEFLY
@given(data=st.data())
def test_damaged_bytes(whole_files, tmp_path, data):
    original, key_map = data.draw(st.sampled_from(whole_files))
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        # Most damage goes to the header, where it can change meaning.
        end = data.draw(st.sampled_from([12, 400, len(content)]))
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    (tmp_path / "a").write_bytes(content)
    read_in_every_way(tmp_path / "a", key_map)


def parts(content):
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
_LAYER = "double_blocks.3.img_attn.qkv"
_PREFIXES = ("diffusion_model.", "transformer.", "base_model.model.", "lora_unet_", "lycoris_", "")
_ENDINGS = (
    *("lora_up.weight", "lora_down.weight", "lora_mid.weight", "lora_A.weight", "lora_B.weight"),
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "lokr_w1"),
    *("lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2", "alpha"),
    *("dora_scale", "lora_magnitude_vector", "diff", "diff_b", "w_norm", "oft_blocks"),
)
_KINDS = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "F8_E4M3": 1, "I64": 8, "BOOL": 1}


@BRIEFLY
@given(data=st.data())
def test_changed_headers(whole_files, tmp_path, data):
    """Valid JSON with another meaning: names, shapes, places and formats."""
    original, key_map = data.draw(st.sampled_from(whole_files))
    header, values = parts(original)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(header)))
        change = data.draw(st.sampled_from(["rename", "entry", "field", "remove"]))
        if change == "rename":
            ending = data.draw(st.sampled_from(_ENDINGS))
            header[f"{key.split('.lora')[0]}.{ending}"] = header.pop(key)
        elif change == "entry":
            header[key] = data.draw(_JSON)
        elif change == "field" and isinstance(header[key], dict) and header[key]:
            field = data.draw(st.sampled_from(sorted(header[key])))
            header[key][field] = data.draw(_JSON | st.lists(st.integers(-1, 40), max_size=4))
        else:
            header.pop(key)
        if not header:
            break
    (tmp_path / "a").write_bytes(joined(header, values))
    read_in_every_way(tmp_path / "a", key_map)


_SIZES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@BRIEFLY
@given(
    prefix=st.sampled_from(_PREFIXES),
    tensors=st.dictionaries(
        st.sampled_from(_ENDINGS), st.tuples(_SIZES, st.sampled_from(sorted(_KINDS))), max_size=6
    ),
    note=st.none() | _JSON,
)
def test_whole_files_of_any_tensors(tmp_path, prefix, tensors, note):
    """Headers that are right in themselves, of layers that need not be."""
    name = prefix + (_LAYER.replace(".", "_") if prefix.endswith("_") else _LAYER)
    header, place = {}, 0
    for ending, (shape, kind) in tensors.items():
        size = _KINDS[kind]
        for side in shape:
            size *= side
        offsets = [place, place + size]
        header[f"{name}.{ending}"] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        place += size
    header["__metadata__"] = {"lora_adapter_metadata": json.dumps(note)} if note is not None else {}
    (tmp_path / "a").write_bytes(joined(header, bytes(place)))
    read_in_every_way(tmp_path / "a", FLUX)
