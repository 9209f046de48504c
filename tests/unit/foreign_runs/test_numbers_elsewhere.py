"""Numbers that other trainers mean by a name, as their own sources compute them."""

import json

import pytest
import torch
import yaml
from fixtures import foreign_files as files

from trainer_core.families.run_files import load_config
from trainer_core.foreign_runs import read_foreign
from trainer_core.foreign_runs.documents import parse_document
from trainer_core.training.step.make_loss import make_loss


def one_trainer(optimizer="ADAMW", **more):
    values = json.loads(files.ONE_TRAINER_SHIFT) | {"optimizer": optimizer, **more}
    return read_foreign([parse_document("x.json", json.dumps(values))])


@pytest.mark.parametrize(
    ("said", "name", "numbers"),
    [
        # As `modules/util/optimizer_util.py` fills them in there.
        ({"optimizer": "SGD"}, "sgd", {"beta1": 0.0, "weight_decay": 0.0}),
        ({"optimizer": "SGD", "momentum": 0}, "sgd", {"beta1": 0.0}),
        ({"optimizer": "SGD", "momentum": 0.8}, "sgd", {"beta1": 0.8}),
        ({"optimizer": "MUON", "momentum": 0.9}, "muon", {"beta1": 0.9, "weight_decay": 0.0}),
        ({"optimizer": "LION_8BIT"}, "lion8bit", {"beta2": 0.999, "weight_decay": 0.0}),
        ({"optimizer": "LION"}, "lion", {"beta2": 0.99, "weight_decay": 0.0}),
        ({"optimizer": "ADAMW"}, "adamw", {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}),
    ],
)
def test_an_optimizer_has_the_numbers_that_it_has_there(said, name, numbers):
    run = one_trainer(said)
    optimizer = run.config().training.optimizer
    assert optimizer.name == name
    assert {each: getattr(optimizer, each) for each in numbers} == numbers
    assert not [note for note in run.notes if "momentum" in note.key and note.outcome == "off"]
    again = load_config(yaml.safe_load(run.run_file())).training.optimizer
    assert again == optimizer


@pytest.mark.parametrize(
    ("said", "name", "outcome"),
    [
        ("REX", "rex", "near"),  # with 0.9 where the paper has 1/2
        ("COSINE_WITH_RESTARTS", "cosine_restarts", "near"),  # a wave
        ("COSINE_WITH_HARD_RESTARTS", "cosine_restarts", "exact"),
        ("COSINE", "cosine", "exact"),
    ],
)
def test_a_schedule_of_the_same_name_may_be_another(said, name, outcome):
    run = one_trainer(learning_rate_scheduler=said, learning_rate_cycles=4)
    assert run.values["training.schedule.name"] == name
    (note,) = [each for each in run.notes if each.setting == "training.schedule.name"]
    assert note.outcome == outcome


def test_huber_of_ai_toolkit_has_its_scale():
    """``sqrt(e^2 + c^2) - c`` with c = 0.01 in `extensions_built_in/sd_trainer/SDTrainer.py`."""
    assert "loss_type: mae" in files.AI_TOOLKIT_FLUX
    text = files.AI_TOOLKIT_FLUX.replace("loss_type: mae", "loss_type: pseudo_huber")
    loss = read_foreign([parse_document("x.yaml", text)]).config().training.loss
    assert (loss.kind, loss.huber_delta) == ("huber", 0.01)
    errors = torch.linspace(-2, 2, 41).view(1, 1, 1, -1)
    ours, _ = make_loss(loss)(errors, torch.zeros_like(errors), torch.ones(1))
    theirs = ((errors.square() + 0.01**2).sqrt() - 0.01).mean()
    torch.testing.assert_close(ours, 0.02 * theirs.view(1))


def test_momentum_is_read_in_every_program():
    ai = files.AI_TOOLKIT.replace("optimizer: adamw8bit", "optimizer: sgd")
    ai = ai.replace("{weight_decay: 1e-4}", "{weight_decay: 1e-4, momentum: 0.7}")
    command = files.MUSUBI_COMMAND.replace("--optimizer_type adamw8bit", "--optimizer_type sgd")
    command = command.replace('weight_decay=0.1 "betas=0.9,0.98"', "momentum=0.7")
    tuned = files.QWEN_FINETUNE
    at = tuned.index("optimizer:")
    tuned = tuned[:at] + (
        "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1, momentum: 0.7}}\n"
    )
    for name, text in (("x.yaml", ai), ("x.sh", command), ("y.yaml", tuned)):
        run = read_foreign([parse_document(name, text)])
        assert run.values["training.optimizer.name"] == "sgd"
        assert run.values["training.optimizer.beta1"] == 0.7, name
