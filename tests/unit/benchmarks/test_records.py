"""The committed figures: whose they are, whether the code still gives them, where they stand."""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from benchmarks.measuring.recipes import frozen_linear, our_recipes
from benchmarks.measuring.record import RESULTS, read_record
from benchmarks.measuring.single_layer import Layer, measure_layer
from benchmarks.memory_plans import BASES, COMPARED, INPUTS_IN_RAM, peak_rows, published, sizes_of
from benchmarks.step_time import Workload, measure
from benchmarks.write_tables import DOCUMENTS, ROOT, TABLES, with_tables
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.offload.model_bytes import base_bytes
from trainer_core.quantization.formats import FORMATS

FILES = sorted(RESULTS.glob("*.json"))
COMMIT = re.compile(r"[0-9a-f]{40}")
EXHAUSTIVE = pytest.mark.exhaustive
PLACE = ("base", "pixels", "base_format", "swap")
COUNTERS = ("saved", "written", "flops", "operations", "parameters")


def origins(content):
    """Every part of a file that says whose figures it holds."""
    if isinstance(content, list):
        return [found for each in content for found in origins(each)]
    if not isinstance(content, dict):
        return []
    inside = [found for each in content.values() for found in origins(each)]
    return [content, *inside] if "commit" in content else inside


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_which_commit_and_machine_it_is_of(path):
    found = origins(json.loads(path.read_text(encoding="utf-8")))
    assert found
    for each in found:
        assert COMMIT.fullmatch(each["commit"]), "measure a committed state"
        assert each["machine"]["processor"]
        assert each["machine"]["cores"] >= 1
        assert each["versions"]["torch"]
        assert each["threads"] >= 1
        assert "load_average" in each


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_counters_of_a_layer_are_those_of_the_code(dtype):
    layer = Layer(3072, 3072, dtype, "cpu")
    recorded = read_record(RESULTS / "layers.json")["sections"][layer.name]["rows"]
    # Shapes are enough to count: products in bf16 take minutes on a processor without AVX-512.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        recipes = [by_shape(recipe, mode) for recipe in our_recipes()]
        _compare(measure_layer(layer, recipes, rounds=0), recorded, COUNTERS)


def by_shape(recipe, mode):
    """The recipe on tensors without values; adapters are made with them, as DoRA looks at some."""

    def build(linear):
        with unset_fake_temporarily():
            weight, bias = (
                torch.ones(each.shape, dtype=each.dtype) for each in linear.parameters()
            )
            adapted = recipe.build(frozen_linear(weight, bias))
        for module in adapted.forward.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                module._parameters[name] = mode.from_tensor(parameter)
        trainable = [each for each in adapted.forward.parameters() if each.requires_grad]
        return replace(adapted, parameters=trainable)

    return replace(recipe, build=build)


def test_the_counters_of_a_step_are_those_of_the_code():
    family = get_family("qwen_image")
    location = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False)
    candidates = Workload(family, location).candidates()
    recorded = read_record(RESULTS / "step_time.json")["rows"]
    _compare(measure(candidates[:4], rounds=1), recorded, ("flop_ratio", "saved_mib", "parameters"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_tables_of_a_document_come_from_the_files(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert with_tables(text) == text, "python -m benchmarks.write_tables writes them"
    # A figure that somebody changes by hand is noticed.
    spoiled = re.sub(r"(<!-- figures: \w+ -->\n\|)", r"\1 9.99 |", text, count=1)
    assert with_tables(spoiled) == text != spoiled


def test_every_table_is_told_somewhere():
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    assert sorted(re.findall(r"<!-- figures: (\w+) -->", text)) == sorted(TABLES)


def test_the_weights_of_a_simulated_peak_are_those_of_the_code():
    rows = read_record(RESULTS / "memory_plans.json")["peaks"]
    for base in BASES:
        family = get_family(base.family)
        transformer = published(family, base.sizes)
        for form in ("dense", *COMPARED):
            lists, stored = family.layers.repeated_blocks, FORMATS.get(form)
            total = base_bytes(transformer, lists, torch.bfloat16, stored).total
            weights = [
                row["weights"]
                for row in rows
                if (row["base"], row["base_format"], row["swap"]) == (base.title, form, "none")
            ]
            assert weights == [total] * len(base.edges), (base.title, form)


@EXHAUSTIVE
def test_a_simulated_peak_is_that_of_the_code():
    family = get_family("qwen_image")
    found = peak_rows(sizes_of(published(family), family, 512))
    # In other formats it depends on how much room reading a weight takes, too.
    now = {(row["base_format"], row["swap"]): row for row in found if not row["rank"]}
    rows = read_record(RESULTS / "memory_plans.json")["peaks"]
    for row in rows:
        place = row["base_format"], row["swap"]
        if (row["family"], row["pixels"]) == ("qwen_image", 512) and place in now:
            assert row["device"] == now[place]["device"], place


def _compare(rows, recorded, columns):
    known = {row["name"]: row for row in recorded}
    for row in rows:
        for column in columns:
            expected = pytest.approx(known[row.name][column], rel=0.005)
            assert getattr(row, column) == expected, f"{row.name}: {column}"


def test_own_images_meet_their_bars():
    record = read_record(RESULTS / "own_images.json")
    rows = [row for row in record["rows"] if row["way"] == "template"]
    assert len({(row["shape"], row["seed"]) for row in rows}) == 9
    for name, bar in record["bars"].items():
        assert min(row[name] for row in rows) >= bar, name
    without = [row["kept"] for row in record["rows"] if row["way"] == "without preservation"]
    assert max(without) < record["bars"]["kept"]


def test_no_plan_takes_less_than_nothing_and_inputs_in_ram_spare_vram():
    content = read_record(RESULTS / "memory_plans.json")
    chosen = [best for row in content["plans"] for best in row.get("best", [])]
    assert all(row["ram"] >= 0 and row["activations"] > 0 for row in [*content["peaks"], *chosen])
    device = {tuple(row[key] for key in PLACE): row["device"] for row in content["peaks"]}
    for (*place, swap), needed in device.items():
        if swap == INPUTS_IN_RAM:
            assert needed <= device[(*place, "all")], place
