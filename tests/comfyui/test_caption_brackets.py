"""Escaped captions keep all letters in ComfyUI, and weigh only where a number says so."""

import random

import pytest

from trainer_core.data.captions.bracket_weights import escaped_brackets, has_weights

pytestmark = pytest.mark.comfy
PARTS = (*"()()\\: .1a[]{}", ":)", "C:\\x\\", "\U0001f600", "_(append)", r"\(", "((x))", "16:9")


def test_letters_stay_and_numbers_weigh(comfy_host, tmp_path):
    draw = random.Random(1)
    texts = ["".join(draw.choices(PARTS, k=draw.randrange(12))) for _ in range(3000)]
    texts += [f"{text} (red:0.5)" for text in texts[:500]]
    both = [*texts, *map(escaped_brackets, texts)]
    read = comfy_host.results("brackets_process.py", tmp_path, jobs=both)
    weighing = [has_weights(text) for text in both]
    # A pair without a number weighs 1.1, and a number of 1 weighs nothing.
    assert not [
        text
        for text, parts, w in zip(both, read, weighing, strict=True)
        if not w and {weight for _, weight in parts} - {1}
    ]
    for text, parts, w in zip(texts, read[len(texts) :], weighing[len(texts) :], strict=True):
        if not w:
            letters = text.replace(r"\(", "(").replace(r"\)", ")")
            assert "".join(part for part, _ in parts) == letters
    assert all(["red", 0.5] in parts for parts in read[-500:])
