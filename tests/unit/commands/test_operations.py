"""merge, extract, resize and combine on the command line: what they print, write and refuse."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.fixtures.flux_files import FLUX, random_adapter, write_folder, write_native
from tests.fixtures.native_files import flux_to_native, make_native_flux, to_scaled
from tests.fixtures.tables import table
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.bases.base_weights import open_base
from trainer_core.cli import main


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base as file, folder and in 8 bits, and adapters for it."""
    place = tmp_path_factory.mktemp("place")
    model = make_native_flux(layers=1, single_layers=1)
    write_folder(place / "folder", model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    write_native(place / "base.safetensors", state)
    tensors, metadata = to_scaled(flux_to_native(state), "new")
    save_file(tensors, place / "fp8.safetensors", metadata)
    for name, options in {
        "lora": {"kind": "lora"},
        "other": {"kind": "lora", "rank": 2},
        "lokr": {"kind": "lokr", "factor": 4, "full_matrix": True},
        "loha": {"kind": "loha"},
        "dora": {"kind": "lora", "dora": True},
    }.items():
        adapter = random_adapter(model, **options)
        header = {"adapter_trainer": json.dumps({"family": "flux", "step": 7, "settings": {}})}
        write_adapter(
            place / f"{name}.safetensors", adapter, "comfyui", FLUX.layers.key_map, header
        )
    return place


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """A folder of this test's own, in which the shared files have short names."""
    monkeypatch.chdir(tmp_path)
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def command(capsys, *words, code=0):
    """Run a verb; its last JSON object."""
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def read(path):
    return read_adapter(path, FLUX.layers.key_map)


def delta(state, name):
    return layer_delta(state.kind, state.layers[name])


@pytest.mark.parametrize("base", ["base.safetensors", "folder", "fp8.safetensors"])
def test_merge_and_extract_give_the_adapter_back(base, here, capsys):
    out = "merged" if base == "folder" else "merged.safetensors"
    report = command(capsys, "merge", base, "lora.safetensors", out, "--strength", "0.5")
    assert report["layers"] == len(report["rounding_error"]) > 20
    assert report["adapters"] == [{"file": "lora.safetensors", "strength": 0.5}]
    assert open_base(here / out).family.name == "flux"
    words = ["--kind", "lora", "--rank", "4", "--dtype", "fp32"]
    report = command(capsys, "extract", base, out, "found.safetensors", *words)
    given, found = read(here / "lora.safetensors"), read(here / "found.safetensors")
    assert set(found.layers) == set(given.layers)
    errors = [relative(delta(found, n), 0.5 * delta(given, n)) for n in given.layers]
    if base == "fp8.safetensors":
        assert 0.05 < max(report["error"].values()) < 0.5
        assert max(errors) < 0.3
    else:
        assert max(report["error"].values()) < 1e-5
        assert max(errors) < 1e-5
    assert report["stored_as"]["base"] == report["stored_as"]["tuned"]


def test_resize_keeps_layout_format_and_what_the_header_tells(here, capsys):
    state = read(here / "lora.safetensors")
    header = {"adapter_trainer": json.dumps({"family": "flux", "step": 7})}
    write_adapter(
        here / "bf16.safetensors", state, "diffusers", FLUX.layers.key_map, header, "bf16"
    )
    report = command(capsys, "resize", "bf16.safetensors", "small.safetensors", "--rank", "2")
    assert report["ranks"] == {"2": report["layers"]}
    assert 0 < report["dtype_error"] < 0.01
    with safe_open(here / "small.safetensors", "pt") as file:
        keys = list(file.keys())
        assert all(".lora_A." in key or ".lora_B." in key for key in keys)
        assert file.get_tensor(keys[0]).dtype == torch.bfloat16
        own = json.loads(file.metadata()["adapter_trainer"])
        assert (own["family"], own["step"], own["settings"]["adapter"]["rank"]) == ("flux", 7, 2)
        assert file.metadata()["ss_network_dim"] == "2"
    found = read(here / "small.safetensors")
    for name, error in report["error"].items():
        assert relative(delta(found, name), delta(state, name)) == pytest.approx(error, abs=0.01)


def test_combine_adds_up_and_cuts(here, capsys):
    words = ["combine", "lora.safetensors", "other.safetensors"]
    report = command(capsys, *words, "sum.safetensors", "weights=1,-0.5")
    assert report["ranks"] == {"6": report["layers"]}
    assert set(report["error"].values()) == {0.0}
    one, two = read(here / "lora.safetensors"), read(here / "other.safetensors")
    found = read(here / "sum.safetensors")
    for name in found.layers:
        expected = delta(one, name) - 0.5 * delta(two, name)
        assert relative(delta(found, name), expected) < 1e-6
    report = command(capsys, *words, "cut.safetensors", "--rank", "3", "weights=1,-0.5")
    assert min(report["error"].values()) > 0.001
    assert main([*words, "again.safetensors", "weights=0.5"]) == 0
    assert "median: 0.0" in capsys.readouterr().out
    report = command(capsys, "combine", "loha.safetensors", "lora2.safetensors", "--rank", "8")
    assert (report["kind"], read(here / "lora2.safetensors").kind) == ("lora", "lora")


@pytest.mark.parametrize(("words", "expected"), table(__file__, "refused_operations").values())
def test_wrong_input_is_refused_and_nothing_is_written(words, expected, here, capsys):
    (here / "mine").mkdir()
    (here / "mine" / "letter.txt").write_text("dear")
    (here / "mine" / "a.safetensors").write_bytes((here / "lora.safetensors").read_bytes())
    before = sorted(path for path in here.rglob("*"))
    contents = {path: path.read_bytes() for path in before if path.is_file()}
    report = command(capsys, *words.split(), code=2)
    assert expected in f"{report['found']} {report['expected']}"
    assert report["remedy"]
    assert sorted(path for path in here.rglob("*")) == before
    assert all(path.read_bytes() == content for path, content in contents.items())


@pytest.mark.parametrize(
    "told",
    [
        "no json",
        "[1]",
        json.dumps({"family": "flux", "settings": 5, "step": "x", "hashes": [1], "versions": 2}),
        json.dumps({"family": "flux", "settings": {"dataset": 5, "training": ["a"], "base": "b"}}),
        json.dumps({"family": "flux", "settings": {"adapter": {"rank": "many", "x": "my-secret"}}}),
    ],
)
def test_a_strange_header_is_survived_and_not_copied(told, here, capsys):
    state = read(here / "lora.safetensors")
    header = {"adapter_trainer": told, "note": "from my-secret"}
    write_adapter(here / "odd.safetensors", state, "comfyui", FLUX.layers.key_map, header)
    words = ["odd.safetensors", "m.safetensors", "--rank=2", "--overwrite"]
    for verb, own in (("resize", words), ("combine", words), ("combine", [*words[:2], words[-1]])):
        own = [*own, "--family=flux"]
        command(capsys, verb, *own)
        with safe_open(here / "m.safetensors", "pt") as file:
            assert "my-secret" not in str(file.metadata())
            assert json.loads(file.metadata()["adapter_trainer"])["family"] == "flux"
