"""The loss ledger: an image's error over what is usual at its noise level."""

import random

import pytest

from trainer_core.errors import InputError
from trainer_core.training.metrics.loss_ledger import LEDGER, Ledger, read_ledger
from trainer_core.training.step.micro_batch import SampleLoss

NAMES = [f"{n}.png" for n in range(6)]


def usual(sigma):
    """What every image is off by at a noise level: much more at the ends."""
    return 0.1 + 5 * (sigma - 0.5) ** 2


def drawn(seed, steps, size=2):
    """Steps of samples of which image 3 is off by half as much again as the others."""
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        indices = dict(enumerate(rng.sample(range(6), size)))
        sigmas = [rng.random() for _ in range(size)]
        noise = [rng.uniform(0.7, 1.3) for _ in range(size)]
        errors = [
            usual(sigma) * off * (1.5 if indices[place] == 3 else 1.0)
            for place, (sigma, off) in enumerate(zip(sigmas, noise, strict=True))
        ]
        yield step, indices, [SampleLoss(p, sigmas[p], errors[p]) for p in range(size)]


def filled(seed=0, steps=200):
    ledger = Ledger(6, NAMES.__getitem__)
    for each in drawn(seed, steps):
        ledger.add(*each)
    return ledger


def reference(steps):
    """The definition, in plain Python."""
    seen, mean = {}, {}
    ratios = {name: [] for name in NAMES}
    for _, indices, errors in steps:
        before = dict(mean)
        for each in errors:
            band = min(int(each.sigma * 20), 19)
            if band in before:
                ratios[NAMES[indices[each.position]]].append(each.error / before[band])
        for each in errors:
            band = min(int(each.sigma * 20), 19)
            seen[band] = seen.get(band, 0) + 1
            old = mean.get(band, 0.0)
            mean[band] = old + (each.error - old) / min(seen[band], 64)
    return {n: (sum(r) / len(r), len(r), r[-1]) for n, r in ratios.items() if r}


def test_it_is_the_mean_of_the_errors_over_what_is_expected():
    expected = reference(drawn(5, 120))
    found = {each.name: each[1:] for each in filled(5, 120).images()}
    assert found.keys() == expected.keys()
    for name, (ratio, times, last) in expected.items():
        assert found[name] == (pytest.approx(ratio, rel=1e-12), times, pytest.approx(last))


def test_it_goes_on_from_a_checkpoint_to_the_bit():
    steps = list(drawn(2, 60))
    whole, first, second = (Ledger(6, NAMES.__getitem__) for _ in range(3))
    for number, each in enumerate(steps):
        whole.add(*each)
        if number < 25:
            first.add(*each)
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()})
    for each in steps[25:]:
        second.add(*each)
    assert second.images() == whole.images()


def test_the_file_has_the_worst_first_and_reads_back(tmp_path):
    ledger = filled()
    ledger.write(tmp_path, 200)
    found = read_ledger(tmp_path)
    assert (found["step"], found["measured"]) == (200, 6)
    assert [each["name"] for each in found["images"]] == [each.name for each in ledger.images()]
    assert found["images"][0]["ratio"] == pytest.approx(ledger.images()[0].ratio, abs=1e-4)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"step": 1, "measured": 1, "images": 3}'])
def test_a_damaged_or_absent_file_is_refused_in_three_parts(tmp_path, text):
    if text is not None:
        (tmp_path / LEDGER).write_text(text)
    with pytest.raises(InputError, match=LEDGER) as error:
        read_ledger(tmp_path)
    assert error.value.expected
    assert error.value.remedy
