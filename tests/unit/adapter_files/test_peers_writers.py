"""What PEFT, Diffusers and LyCORIS themselves save, with a scale that is not 1."""

import lycoris
import pytest
import torch
from diffusers.loaders import QwenImageLoraLoaderMixin
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from tests.fixtures.qwen_base import make_qwen_transformer
from tests.fixtures.tables import table
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.read.read_adapter import adapter_files, read_adapter, read_file
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapters.dora import DORA_SCALE
from trainer_core.adapters.kinds.registry import layer_delta, layer_scale
from trainer_core.families.registry import get_family

KEY_MAP = get_family("qwen_image").layers.key_map
NAMES = [f"transformer_blocks.0.attn.{each}" for each in ("to_q", "to_k", "to_out.0")]
TARGETS = r".*\.attn\.(to_q|to_k|to_out\.0)"


def make_model():
    return make_qwen_transformer(1, joint_attention_dim=24)


def fill(model):
    generator = torch.Generator().manual_seed(1)
    marks = ("lora_", "hada_", "lokr_")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(mark in name for mark in marks):
                values = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values.abs() + 0.5 if "magnitude" in name else values)


def weights_of(model):
    """Each layer's weight with the adapter in it, by the library's own merge."""
    merged = model.merge_and_unload()
    return {name: merged.get_submodule(name).weight.detach().clone() for name in NAMES}


def own_weights(state, base):
    """The same by our own reading of the file."""
    weights = {}
    for name, layer in state.layers.items():
        total = base[name].double() + layer_delta(state.kind, layer).double()
        lengths = layer.tensors.get(DORA_SCALE)
        if lengths is not None:
            assert lengths.shape == (total.shape[0], 1)
            total = total * lengths.double() / total.norm(dim=1, keepdim=True)
        weights[name] = total
    return weights


def assert_same(state, base, wanted):
    assert set(state.layers) == set(NAMES)
    for name, weight in own_weights(state, base).items():
        change = wanted[name].double() - base[name].double()
        assert change.norm() > 0.1 * base[name].norm()
        assert relative(weight - base[name].double(), change) < 1e-5


KINDS = {"LoraConfig": LoraConfig, "LoHaConfig": LoHaConfig, "LoKrConfig": LoKrConfig}
CONFIGS = {
    title: KINDS[kind](target_modules=TARGETS, **options)
    for title, (kind, options) in table(__file__, "peft").items()
}


@pytest.fixture(scope="module")
def base():
    model = make_model()
    return {name: model.get_submodule(name).weight.detach().clone() for name in NAMES}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """PEFT's folders, and the weights that PEFT itself makes of them."""
    found = {}
    for title, config in CONFIGS.items():
        model = get_peft_model(make_model(), config)
        fill(model)
        folder = tmp_path_factory.mktemp("peft") / "adapter"
        model.save_pretrained(str(folder))
        raw = model.state_dict()
        found[title] = folder, weights_of(model), raw
    return found


@pytest.mark.parametrize("title", CONFIGS)
def test_a_folder_of_peft_means_what_peft_computes(title, saved, base):
    folder, wanted, _ = saved[title]
    assert_same(read_adapter(folder, KEY_MAP), base, wanted)
    # The bare file finds the configuration beside it.
    assert_same(read_adapter(folder / "adapter_model.safetensors", KEY_MAP), base, wanted)
    assert read_file(folder).layout == "peft"
    assert adapter_files(folder) == adapter_files(folder / "adapter_model.safetensors")
    assert len(adapter_files(folder)) == 2
    assert set(inspect_adapter(folder, KEY_MAP).norms) == set(NAMES)


@pytest.mark.parametrize("title", ["lora", "rslora", "dora", "patterns"])
def test_a_file_of_diffusers_models_means_what_peft_computes(title, saved, base, tmp_path):
    _, wanted, _ = saved[title]
    model = make_model()
    model.add_adapter(CONFIGS[title])
    fill(model)
    model.save_lora_adapter(str(tmp_path))
    path = tmp_path / "pytorch_lora_weights.safetensors"
    assert_same(read_adapter(path, KEY_MAP), base, wanted)
    assert_same(read_adapter(tmp_path, KEY_MAP), base, wanted)
    metadata = read_file(path).metadata
    assert "lora_adapter_metadata" in metadata
    save_file(load_file(path), path, {"format": "pt"})
    state = read_adapter(path, KEY_MAP)
    assert {layer_scale("lora", layer) for layer in state.layers.values()} == {1.0}


@pytest.mark.parametrize("title", ["lora", "patterns", "lokr", "lokr whole"])
def test_a_file_of_diffusers_pipelines_means_what_peft_computes(title, saved, base, tmp_path):
    _, wanted, _ = saved[title]
    model = make_model()
    model.add_adapter(CONFIGS[title])
    fill(model)
    QwenImageLoraLoaderMixin.save_lora_weights(
        str(tmp_path),
        transformer_lora_layers=get_peft_model_state_dict(model),
        transformer_lora_adapter_metadata=model.peft_config["default"].to_dict(),
    )
    path = tmp_path / "pytorch_lora_weights.safetensors"
    assert all(key.startswith("transformer.") for key in load_file(path))
    assert_same(read_adapter(path, KEY_MAP), base, wanted)


LYCORIS = table(__file__, "lycoris")


@pytest.mark.parametrize("title", LYCORIS)
def test_a_file_of_lycoris_means_what_lycoris_computes(title, tmp_path):
    options = {"linear_dim": 2, "linear_alpha": 3.0, **LYCORIS[title]}
    model = make_model()
    network = lycoris.create_lycoris(model, 1.0, **options)
    network.apply_to()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values.abs() + 0.5 if "dora" in name else values)
    tensors = {name: tensor.clone().contiguous() for name, tensor in network.state_dict().items()}
    path = tmp_path / "lycoris.safetensors"
    save_file(tensors, path)
    state = read_adapter(path, KEY_MAP)
    linears = {n: m for n, m in make_model().named_modules() if isinstance(m, torch.nn.Linear)}
    assert set(state.layers) == set(linears)
    by_name = {module.lora_name: module for module in network.loras}
    for name, linear in linears.items():
        module, weight = by_name[f"lycoris_{name.replace('.', '_')}"], linear.weight.detach()
        x = torch.randn(5, weight.shape[1], generator=generator)
        with torch.no_grad():
            bias = module.org_module[0].bias
            wanted = module(x) - (0.0 if bias is None else bias)
        found = x @ whole_weight(state, name, weight).T
        assert relative(found - x @ weight.T, wanted - x @ weight.T) < 1e-5


def whole_weight(state, name, weight):
    layer = state.layers[name]
    total = weight + layer_delta(state.kind, layer)
    lengths = layer.tensors.get(DORA_SCALE)
    if lengths is None:
        return total
    axis = 1 if lengths.shape[1] == 1 else 0
    return lengths * total / total.norm(dim=axis, keepdim=True)
