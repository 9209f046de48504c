"""A family is one folder and one line of the registry: everything works with one from `tests`."""

import pytest
import torch
from runs import command, noisy_images

from tests.fixtures.made_up_family.base import make_lumen_base
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.config import BaseSection, RunConfig
from trainer_core.errors import ConfigError, RunError
from trainer_core.families.registry import PACKAGES, get_family
from trainer_core.families.run_files import load_config
from trainer_core.offload.empty_base import empty_base
from trainer_core.offload.possible_plans import Budget
from trainer_core.training.memory.memory_estimate import UNABLE, adapter_bytes, run_simulation
from trainer_core.training.setup.plan_memory import choose_step_plan
from trainer_core.types import Bucket

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(autouse=True)
def lumen(monkeypatch):
    """The one line."""
    monkeypatch.setitem(PACKAGES, "lumen", "tests.fixtures.made_up_family")
    return get_family("lumen")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_lumen_base(tmp_path_factory.mktemp("lumen") / "base")


def test_a_run_goes_from_template_to_adapter(base, tmp_path, capsys, monkeypatch):
    (preset,) = command(capsys, "template", "lumen", "style", "fast")
    assert "path: nobody/Lumen" in preset["run_file"]
    (template,) = command(capsys, "template", "lumen")
    (tmp_path / "run.yaml").write_text(template["run_file"])
    noisy_images(tmp_path / "images", 2, 32)
    monkeypatch.chdir(tmp_path)
    settings = [
        f"base.path={base}",
        "dataset.resolution=32",
        "training.steps=2",
        "training.schedule.warmup_steps=0",
        "training.precision=fp32",
        "preview.prompts=[an image]",
        "preview.every=2",
        "preview.width=32",
        "preview.height=32",
        "preview.steps=2",
        "memory.device=cpu",
        "output.layouts=[comfyui, diffusers, peft]",
    ]
    (report,) = command(capsys, "doctor", "run.yaml", *settings)
    assert report["run"]["family"] == "lumen"
    assert report["run"]["adapter"]["layers"] == 8
    # Its model asks for the lengths of texts while it computes, so that it cannot be simulated.
    assert set(report["run"]["memory_estimate"]) == {"base", "adapter", "total"}
    assert "activations" in report["run"]["memory_unknown"]
    events = command(capsys, "train", "run.yaml", *settings)
    result = events[-1]["result"]
    assert (result["status"], len(result["pictures"]), len(result["adapters"])) == ("done", 2, 3)
    file = result["adapters"][0]
    (told,) = command(capsys, "inspect", file)
    assert told["family"] == "lumen"
    command(capsys, "convert", file, tmp_path / "kohya.safetensors", "--to", "kohya")
    assert adapter_family(tmp_path / "kohya.safetensors").name == "lumen"


def test_a_step_that_cannot_be_simulated_is_planned_by_its_weights(base, lumen):
    section = BaseSection(path=str(base))
    location = locate_base(section, lumen, has_controls=False, needs_encoders=False)
    empty, memory = empty_base(location, lumen), {"device": "cpu", "base_format": "dense"}
    config = RunConfig.model_validate(
        {"family": "lumen", "memory": memory, "training": {"precision": "fp32"}}
    )
    simulation = run_simulation(config, empty, [Bucket(32, 32)], torch.device("cpu"), 8)
    with pytest.raises(UNABLE):
        simulation.step()
    weights = 4 * empty.parameters + adapter_bytes(simulation)
    # With room for a step, and without: it is no reason to refuse a run.
    for free, rest in ((2 * weights, 2 * weights // 4), (weights, 0)):
        budget = Budget(free, 1 << 40, 1 << 40, 20e9, 1e12, reserve=0)
        choice = choose_step_plan(simulation, empty, budget)
        assert "DataDependentOutputException" in choice.guessed
        (plan, *_) = choice.plans
        assert (plan.base_format, plan.blocks_to_swap) == ("dense", 0)
        assert plan.device == weights + rest
        assert plan.seconds > 0
    with pytest.raises(RunError, match="VRAM"):
        choose_step_plan(simulation, empty, Budget(9, 9, 9, 20e9, 1e12, reserve=0))


def test_its_base_is_recognised_as_folder_and_as_file(base, lumen):
    assert detect_base(base) == detect_base(base / WEIGHTS) == "lumen"
    models = []
    for path in (base, base / WEIGHTS):
        section = BaseSection(path=str(path), encoders=str(base))
        location = locate_base(section, lumen, has_controls=False)
        models.append(lumen.load_transformer(location, torch.float32, "cpu"))
    first, second = (model.state_dict() for model in models)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_its_name_is_offered_and_the_line_is_all_that_makes_it_known(monkeypatch):
    assert load_config({"family": "lumen"}).family == "lumen"
    with pytest.raises(ConfigError) as caught:
        load_config({"family": "lumin"})
    assert "lumen" in caught.value.remedy
    monkeypatch.delitem(PACKAGES, "lumen")
    with pytest.raises(ConfigError, match="family is lumen"):
        load_config({"family": "lumen"})
