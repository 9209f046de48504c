"""kill -9 anywhere, also while a checkpoint is being written, loses nothing.

Each run is killed right before a file event of its own (`deaths`), spread over its whole course, so
that each kill leaves another state on the disk.
"""

import contextlib
import os
import signal

import pytest
import torch
from deaths import commanded, in_child, spread, trained
from everything import everything, masked_images
from faults import BREAKS, overflowing
from runs import assert_same_files, merge, metrics, record, run_config, tensors

from tests.fixtures.combinations import some

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]
STEPS = 6
USUAL, QUICK = 4, 3
KILLS = int(os.environ.get("KILLS", USUAL))
"""Of each row of `RUNS`; a campaign of a hundred sets 13 (docs/faults.md)."""
RUNS = {
    "plain": {},
    "previews, held-out images, checkpointed blocks": {
        "dataset": {"validation": {"share": 0.1, "every": 3, "most": 2, "noise_levels": 1}},
        "preview": {"every": 3, "prompts": ["a red circle"], "width": 64, "height": 64, "steps": 1},
        "memory": {"gradient_checkpointing": True},
    },
    "dora": {"adapter": {"kind": "lora", "factor": 8, "dora": True, "dropout": 0.1}},
    "adamw8bit": {"training": {"optimizer": {"name": "adamw8bit", "learning_rate": 1e-3}}},
    "preservation": {"dataset": {"preservation": {"share": 0.5, "count": 4, "steps": 3}}},
    "steps left out, and a return": merge(
        BREAKS, {"training": {"recovery": {"skips": 1, "returns": 2, "rate_factor": 0.01}}}
    ),
    # Masks, averages, validation, previews and learned weights, and all of the above at once.
    "everything": {},
    "everything, prodigy": {"training": {"optimizer": {"name": "prodigy", "learning_rate": 1.0}}},
}
"""What a run has on besides the ledger, accumulation, dropout of captions and of the adapter's
inputs: a new setting whose state has to survive is a row. Those of a name that begins with
``everything`` are beside what `everything` has."""


def settings_of(name, folder):
    own = RUNS[name]
    if name.startswith("everything"):
        own = everything(masked_images(folder / "images"), **own)
    return merge({"training": {"steps": STEPS, "checkpoint_every": 1, "keep_checkpoints": 2}}, own)


def assert_as_if_nothing_had_been(result, reference, made_up_for=()):
    """All that a run leaves; `made_up_for` are tensors of the state that may be older.

    A signal that gives up a measurement saves the state without it. The next run measures again,
    and says so in ``run.json`` and the metrics; a checkpoint that is there is not written again.
    """
    names = [each.name for each in reference.glob("*.safetensors")]
    assert names
    assert_same_files([result / each for each in names], [reference / each for each in names])
    # Optimizer, averages, ledger and all else that a run goes on from.
    last = max((reference / "checkpoints").iterdir()).name
    state = f"checkpoints/{last}/training_state.safetensors"
    found, expected = (tensors(each / state) for each in (result, reference))
    assert found.keys() == expected.keys()
    same = found.keys() - set(made_up_for)
    assert [key for key in same if not torch.equal(found[key], expected[key])] == []
    assert record(result).get("best") == record(reference).get("best")
    assert metrics(result) == metrics(reference)
    assert (result / "ledger.json").read_bytes() == (reference / "ledger.json").read_bytes()
    assert not list(result.rglob(".writing-*")), "a half-written file was left"


class Rounds:
    """A run that nobody disturbs, and others that are struck at their file events."""

    def __init__(self, name, tmp_path, cache):
        self.name, self.place, self.cache = name, tmp_path, cache
        self.settings = settings_of(name, tmp_path)
        reference = self.config("reference")
        # Fills the cache, whose file events are not the run's.
        prepared, _ = in_child(lambda: trained(reference), tmp_path / "nowhere")
        assert prepared == 0
        self.reference = self.version("reference")
        code, self.events = self.struck("counted", trained)
        assert code == 0
        assert len(self.events) > 10 * STEPS

    def config(self, folder):
        return run_config(self.place / folder, self.cache, **self.settings)

    def version(self, folder):
        return max((self.place / folder / "run").iterdir())

    def struck(self, folder, work, *signals):
        """Train, and send these signals on the way."""
        config = self.config(folder)
        return in_child(lambda: work(config), self.place / folder / "run", *signals)

    def goes_on(self, folder, made_up_for=()):
        """Go on, and end as if nothing had been."""
        config = self.config(folder).model_copy(update={"resume": "auto"})
        code, _ = in_child(lambda: trained(config), self.place / folder / "run")
        assert code == 0
        assert_as_if_nothing_had_been(self.version(folder), self.reference, made_up_for)


@pytest.fixture
def rounds(request, tmp_path, cache):
    with contextlib.ExitStack() as faults:
        if "left out" in request.param:
            faults.enter_context(overflowing())
        yield Rounds(request.param, tmp_path, cache)


@pytest.mark.parametrize("rounds", some(RUNS, "plain"), indirect=True)
def test_a_killed_run_resumes_to_the_same_bits(rounds):
    count = QUICK if rounds.name == "plain" and KILLS == USUAL else KILLS
    for number, at in enumerate(spread(rounds.events, count, "kill", rounds.name)):
        folder = f"round{number}"
        code, seen = rounds.struck(folder, trained, (signal.SIGKILL, at))
        assert (code, seen) == (-signal.SIGKILL, rounds.events[:at])
        rounds.goes_on(folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounds", ["everything"], indirect=True)
@pytest.mark.parametrize("signals", ["SIGTERM", "SIGINT,SIGTERM"])
def test_a_command_that_is_signalled_ends_in_order(rounds, signals):
    """Also in the middle of a save, a preview or a measurement; a second one ends it at once."""
    for number, at in enumerate(spread(rounds.events, KILLS, signals)):
        folder = f"round{number}"
        # A second one comes two file events later, if the run has not ended by then.
        given = [(getattr(signal, each), at + 2 * n) for n, each in enumerate(signals.split(","))]
        code, seen = rounds.struck(folder, commanded, *given)
        assert seen[:at] == rounds.events[:at]
        allowed = {0} if signals == "SIGTERM" else {0, 1}
        place = rounds.place / folder / "run"
        saved = [each.name for each in place.glob("v*/checkpoints/*")]
        # Behind the end of the run nobody listens any more.
        allowed |= {-signal.SIGTERM, -signal.SIGINT} if f"{STEPS:06d}" in saved else set()
        assert code in allowed
        assert not list(place.rglob(".writing-*")), "a half-written file was left"
        # What it had done is saved; a second signal may come before that.
        assert saved or signals != "SIGTERM"
        assert not list(place.glob("v*/lock.json")) or code < 0
        rounds.goes_on(folder, made_up_for=["validation.best"])
