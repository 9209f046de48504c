"""PEFT's configuration: what it says of the scale, and what is refused in it."""

import json

import pytest
import torch
from peft.utils.other import get_pattern_key
from safetensors.torch import save_file

from tests.fixtures.adapter_states import KEY_MAP
from tests.fixtures.tables import table
from trainer_core.adapter_files.read.peft_config import read_config
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapters.kinds.registry import layer_scale
from trainer_core.errors import AdapterFileError

GOOD = {"peft_type": "LORA", "r": 2, "lora_alpha": 3}
TENSORS = {
    "base_model.model.head.lora_A.weight": torch.ones(2, 12),
    "base_model.model.head.lora_B.weight": torch.ones(9, 2),
}


def folder_of(folder, config, tensors=TENSORS):
    save_file(tensors, folder / "adapter_model.safetensors")
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    return folder


def test_the_good_configuration_of_these_cases_is_read(tmp_path):
    layer = read_adapter(folder_of(tmp_path, GOOD), KEY_MAP).layers["head"]
    assert (layer.alpha, layer.rank) == (3.0, 2)


BROKEN = table(__file__, "broken_configurations")


ENDLESS = {
    "nested": ("[" * 200_000, "nested too deeply"),
    "huge": (" " * (4 * 1024 * 1024 + 1), "larger than"),
}


@pytest.mark.parametrize("case", [*BROKEN, *ENDLESS])
def test_a_configuration_that_is_not_right_is_refused(case, tmp_path):
    config, message = {**BROKEN, **ENDLESS}[case]
    with pytest.raises(AdapterFileError, match=message) as caught:
        read_adapter(folder_of(tmp_path, config), KEY_MAP)
    assert "adapter_config.json" in caught.value.found


def test_a_folder_without_configuration_is_refused(tmp_path):
    folder_of(tmp_path, GOOD)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(AdapterFileError, match=r"adapter_config\.json cannot be read"):
        read_adapter(tmp_path, KEY_MAP)


def test_what_a_configuration_names_is_not_followed(tmp_path):
    """Other files, modules and addresses in it change nothing."""
    named = {
        "base_model_name_or_path": "../../../etc/passwd",
        "auto_mapping": {"parent_library": "os", "base_model_class": "system"},
        "revision": "https://example.invalid/x",
        "target_modules": ["../../x"],
        "modules_to_save": None,
        "megatron_core": "os.system",
        "eva_config": {"path": "/x"},
    }
    layer = read_adapter(folder_of(tmp_path, {**GOOD, **named}), KEY_MAP).layers["head"]
    assert layer_scale("lora", layer) == 1.5


HEADER = "lora_adapter_metadata"


def header_file(path, prefix, config, **tensors):
    save_file(
        {
            f"{prefix}head.lora_A.weight": torch.ones(2, 12),
            f"{prefix}head.lora_B.weight": torch.ones(9, 2),
            **tensors,
        },
        path,
        {HEADER: config if isinstance(config, str) else json.dumps(config)},
    )
    return path


def test_a_header_counts_where_its_readers_read_it(tmp_path):
    path = tmp_path / "a.safetensors"
    stored = {"r": 2, "lora_alpha": 3}
    for prefix, scale in (("transformer.", 1.5), ("", 1.5), ("diffusion_model.", 1.0)):
        layer = read_adapter(header_file(path, prefix, stored), KEY_MAP).layers["head"]
        assert layer_scale("lora", layer) == scale
    encoder = {"text_encoder.r": 2, "text_encoder.lora_alpha": 9}
    layer = read_adapter(header_file(path, "transformer.", encoder), KEY_MAP).layers["head"]
    assert layer_scale("lora", layer) == 1.0


def test_a_header_that_says_another_scale_than_the_alpha_is_refused(tmp_path):
    path, stored = tmp_path / "a.safetensors", {"transformer.r": 2, "transformer.lora_alpha": 3}
    alpha = {"transformer.head.alpha": torch.tensor(3.0, dtype=torch.bfloat16)}
    layer = read_adapter(header_file(path, "transformer.", stored, **alpha), KEY_MAP).layers["head"]
    assert layer_scale("lora", layer) == 1.5
    alpha = {"transformer.head.alpha": torch.tensor(2.0)}
    with pytest.raises(AdapterFileError, match=r"scale 1\.5, and the alpha in the file 1"):
        read_adapter(header_file(path, "transformer.", stored, **alpha), KEY_MAP)


@pytest.mark.parametrize("text", ["{", "[]", '{"transformer.r": "x"}', "[" * 100_000, '"x"'])
def test_a_broken_header_is_refused(text, tmp_path):
    path = header_file(tmp_path / "a.safetensors", "transformer.", text)
    with pytest.raises(AdapterFileError, match=f"{HEADER} in its header"):
        read_adapter(path, KEY_MAP)


NAMES = [
    *(f"transformer_blocks.{n}.attn.{each}" for n in (0, 1, 11) for each in ("to_q", "to_out.0")),
    "single_transformer_blocks.1.attn.to_q",
    "proj_out",
]
PATTERNS = table(__file__, "patterns")


@pytest.mark.parametrize("patterns", PATTERNS)
def test_patterns_match_what_pefts_match(patterns, tmp_path):
    folder_of(tmp_path, {**GOOD, "alpha_pattern": patterns})
    config = read_config(tmp_path / "adapter_config.json")
    for name in NAMES:
        wanted = patterns.get(get_pattern_key(patterns, name), 3)
        assert config.scale(name) == wanted / 2


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|a)*b",
        "(.|.)" * 40,
        ".*.*.*.*x",
        "(?:x)",
        "a{1,9999}",
        r"(x)\1",
        "x" * 300 + "+",
        r"\S",
    ],
)
def test_a_pattern_that_could_run_for_long_is_refused(pattern, tmp_path):
    folder_of(tmp_path, {**GOOD, "rank_pattern": {pattern: 2}})
    with pytest.raises(AdapterFileError, match="the pattern") as caught:
        read_adapter(tmp_path, KEY_MAP)
    assert repr(pattern)[:20] in caught.value.found
