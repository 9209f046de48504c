"""Averages of a real run: exported, resumed, switched on later, and made after the run."""

import json
import shutil

import numpy as np
import pytest
import torch
from runs import CancelAfter, run_config, tensors

from tests.fixtures.combinations import rarely
from trainer_core.adapter_files.metadata import own_facts
from trainer_core.cli import main
from trainer_core.tensors.safetensors_reader import open_tensors
from trainer_core.training import train
from trainer_core.training.checkpoints.checkpoint import save_checkpoint
from trainer_core.training.checkpoints.ema import exponential_share
from trainer_core.training.checkpoints.post_hoc_ema import kept_averages, make_averaged
from trainer_core.training.checkpoints.power_ema import Profile, sum_for, update_shares

PARTS = {"kind": "lora", "init": "pissa", "dora": True}
EMA = {"decay": 0.8, "export": "both", "post_hoc": True}
SHORT = {"steps": 8, "batch_size": 2, "gradient_accumulation_steps": 1}


def header(path):
    with open_tensors(path) as file:
        return own_facts(file.metadata)


def trained_weights(folder):
    """The trained factors after each step, float64, of a run that kept every checkpoint."""
    for checkpoint in sorted((folder / "checkpoints").iterdir()):
        kept = tensors(checkpoint / "training_state.safetensors")
        yield {n: each.double() for n, each in kept.items() if n.startswith("adapter.")}


@pytest.mark.exhaustive
def test_a_run_exports_its_average_and_its_last_weights(tmp_path, cache):
    plain = train(run_config(tmp_path / "plain", cache, training=SHORT))
    every = {**SHORT, "checkpoint_every": 1, "keep_checkpoints": 20, "ema": EMA}
    run = train(run_config(tmp_path / "averaged", cache, training=every))
    assert [path.name for path in run.adapters] == ["run.safetensors", "run_last.safetensors"]
    assert run.losses == plain.losses, "an average changes nothing of the training"
    average, last = map(tensors, run.adapters)
    expected = tensors(plain.adapters[0])
    assert all(torch.equal(last[key], expected[key]) for key in expected)
    assert not all(torch.equal(average[key], last[key]) for key in last)
    told = {"kind": "exponential", "decay": 0.8, "updates": 8}
    assert header(run.adapters[0])["average"] == told
    assert "average" not in header(run.adapters[1])
    # What a checkpoint hands on is what the run would export.
    newest = run.folder / "checkpoints" / "000008"
    shown = tensors(newest / "adapter.safetensors")
    assert all(torch.equal(shown[key], average[key]) for key in average)
    direct = {}
    for step, weights in enumerate(trained_weights(run.folder), 1):
        share = exponential_share(0.8, step)
        direct = {n: share * direct.get(n, 0.0) + (1 - share) * w for n, w in weights.items()}
    kept = tensors(newest / "training_state.safetensors")
    for name, each in direct.items():
        own = kept[name.replace("adapter.", "average.", 1)]
        torch.testing.assert_close(own.double(), each, rtol=1e-5, atol=1e-7)


@pytest.mark.exhaustive
def test_averages_are_switched_on_and_off_at_a_resume(tmp_path, cache):
    def go_on(steps, **ema):
        heard = CancelAfter(99)
        training = {**SHORT, "steps": steps, "ema": ema}
        run = train(run_config(tmp_path, cache, training=training, resume="latest"), heard)
        return run, " ".join(map(str, heard.events))

    train(run_config(tmp_path, cache, training={**SHORT, "steps": 3}))
    run, said = go_on(5, decay=0.9, post_hoc=True)
    assert "training.ema.decay was 0.0 and is 0.9" in said
    assert header(run.adapters[0])["average"]["updates"] == 2
    (kept,) = kept_averages(run.folder)
    assert (kept.began, kept.updates, kept.step) == (3, 2, 5)
    run, said = go_on(6)
    assert "training.ema.post_hoc was True and is False" in said
    assert "average" not in header(run.adapters[0])
    state = tensors(run.folder / "checkpoints" / "000006" / "training_state.safetensors")
    assert not any(name.startswith(("average", "power", "counts")) for name in state)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("steps", "adapter", "lengths"), [(12, {}, (0.08,)), *rarely([(60, PARTS, (0.05, 0.08, 0.15))])]
)
def test_an_average_made_after_the_run_is_that_of_all_its_steps(
    tmp_path, cache, steps, adapter, lengths
):
    every = steps // 6
    training = {"steps": steps, "batch_size": 1, "gradient_accumulation_steps": 1}
    training |= {"checkpoint_every": 1, "keep_checkpoints": 100, "ema": {"post_hoc": True}}
    adapter = {**adapter, "dropout": 0.0}
    config = run_config(tmp_path, cache, training=training, adapter=adapter)
    run = train(config)
    weights = list(trained_weights(run.folder))
    last = run.folder / "checkpoints" / f"{steps:06d}"
    for folder in (run.folder / "checkpoints").iterdir():
        if int(folder.name) % every and folder != last:
            shutil.rmtree(folder)
    kept = kept_averages(run.folder)
    assert len(kept) == 6
    moments = np.arange(steps + 1.0)
    for length in lengths:
        near = {0.05: 1e-5, 0.08: 0.03, 0.15: 0.08}[length]
        made = make_averaged(kept, config, length, (tmp_path, f"made{length}"), False)
        assert made.error < near
        wanted = update_shares(Profile(steps, length), moments)
        profiles = [Profile(each.updates, own) for each in kept for own in each.lengths]
        factors, _ = sum_for(profiles, Profile(steps, length))
        reached = np.asarray(factors) @ [update_shares(each, moments) for each in profiles]
        assert np.linalg.norm(reached - wanted) == pytest.approx(
            made.error * np.linalg.norm(wanted), abs=1e-9
        )
        found = flat(tensors(made.paths[0]))
        # To the float32 of running averages it is the sum over every step of the run.
        expected = flat(written(tmp_path, config, last, averaged(reached, weights)))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=3e-6)
        # Early steps, whose shares are off by little, are far away.
        direct = flat(written(tmp_path, config, last, averaged(wanted, weights)))
        moved = flat(tensors(last / "adapter.safetensors")) - direct
        assert float((found - direct).norm()) < 0.25 * float(moved.norm())
        assert header(made.paths[0])["average"]["length"] == length


def averaged(shares, weights):
    return {
        name: sum(share * each[name] for share, each in zip(shares, weights, strict=True))
        for name in weights[0]
    }


def flat(values):
    return torch.cat([values[name].double().flatten() for name in sorted(values)])


def written(tmp_path, config, checkpoint, factors):
    """A file of given factors, by the way of a run that goes on and makes no step."""
    from safetensors.torch import load_file

    folder = tmp_path / "direct" / "run" / "v0"
    shutil.rmtree(tmp_path / "direct", ignore_errors=True)
    shutil.copytree(checkpoint.parent.parent, folder)
    target = folder / "checkpoints" / checkpoint.name
    state = load_file(str(target / "training_state.safetensors"))
    state |= {name: each.float() for name, each in factors.items()}
    said = json.loads((target / "state.json").read_text())
    shutil.rmtree(target)
    adapter = checkpoint / "adapter.safetensors"
    given = (target.parent, said["step"], said["settings"], state)
    save_checkpoint(*given, lambda path: shutil.copyfile(adapter, path))
    output = config.output.model_copy(update={"dir": str(tmp_path / "direct")})
    ended = train(config.model_copy(update={"output": output, "resume": "latest"}))
    return tensors(ended.adapters[0])


@pytest.mark.exhaustive
def test_the_verb_writes_adapters_and_says_how_near_they_are(tmp_path, cache, capsys):
    training = {**SHORT, "checkpoint_every": 2, "keep_checkpoints": 9, "ema": {"post_hoc": True}}
    run = train(run_config(tmp_path, cache, training=training))
    capsys.readouterr()
    assert main(["ema", str(run.folder.parent), "--length", "0.1,0.15", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoints"] == [2, 4, 6, 8]
    assert [each["length"] for each in told["adapters"]] == [0.1, 0.15]
    assert told["adapters"][0]["error"] < 1e-6
    names = ["run_ema0.1.safetensors", "run_ema0.15.safetensors"]
    assert [each["files"] for each in told["adapters"]] == [[str(run.folder / n)] for n in names]
    assert main(["ema", str(run.folder), "--length", "0.1"]) == 2, "it is there"
    assert main(["ema", str(run.folder), str(tmp_path / "out"), "--length=0.1"]) == 0
    one, two = tensors(run.folder / names[0]), tensors(tmp_path / "out" / names[0])
    assert all(torch.equal(one[key], two[key]) for key in one)
    capsys.readouterr()
    for length in ("0.5", "0", "near", "nan"):
        assert main(["ema", str(run.folder), f"--length={length}"]) == 2
    assert main(["ema", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "is not a run" in said
