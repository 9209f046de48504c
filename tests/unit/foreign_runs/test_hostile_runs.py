"""Run files of strangers that cannot be read are refused, in three parts."""

from __future__ import annotations

import pytest
from fixtures import foreign_files as files

from trainer_core.errors import InputError
from trainer_core.foreign_runs import read_foreign
from trainer_core.foreign_runs.documents import parse_document

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x0: 1}\n" + "".join(
    f"k{at}: &k{at} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for at, before in enumerate(["a", *(f"k{each}" for each in range(9))])
)

HOSTILE = {
    "bomb.yaml": (BOMB, "more than"),
    "merges.yaml": (MERGES, "more than"),
    "self.yaml": ("a: &a [*a]", "refers to itself"),
    "deep.yaml": ("[" * 3000, "cannot be read"),
    "deep.json": ("[" * 100_000, "nested too deeply"),
    "deep.toml": ("a = " + "[" * 5000, "cannot be read"),
    "code.yaml": ("a: !!python/object/apply:os.system ['true']", "could not determine"),
    "list.yaml": ("- 1\n- 2", "no names with values"),
    "word.yaml": ("hello", "no names with values"),
    "empty.yaml": ("", "no names with values"),
    "huge.yaml": ("a: " + "x" * (1 << 20), "more than"),
    "many.json": ("[" + "1," * 60_000 + "1]", "more than"),
    "quotes.sh": ("python a_train_network.py --dit 'open", "cannot be read"),
    "other.sh": ("rm -rf nothing", "starts a Python script"),
    "half.json": ('{"a": ', "cannot be read"),
    "half.toml": ("a = [", "cannot be read"),
    "null.yaml": ("a: \x00", "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_read_is_refused_in_three_parts(name):
    text, words = HOSTILE[name]
    with pytest.raises(InputError) as error:
        parse_document(name, text)
    assert words in error.value.found
    assert error.value.expected
    assert error.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        files.AI_TOOLKIT.replace("steps: 1800", "steps: many"),
        files.AI_TOOLKIT.replace(
            "network: {type: lora, linear: 24, linear_alpha: 12}", "network: 3"
        ),
        files.AI_TOOLKIT.replace("arch: qwen_image", "arch: wan22_14b"),
        files.AI_TOOLKIT.replace("[512, 768, 1024]", "[512, a]"),
        files.AI_TOOLKIT.replace("weight_decay: 1e-4", "weight_decay: {a: 1}"),
        "job: extension\nconfig: {process: [3]}",
        "job: extension\nconfig: {process: []}",
        files.QWEN_FINETUNE.replace('"${logging.output_dir}/cache"', '"${cache.cache_dir}"'),
        files.QWEN_FINETUNE.replace("r: 12", "r: [1]"),
        files.FLYMYAI.replace("rank: 20", "rank: x"),
        "a: 1",
    ],
)
def test_values_that_make_no_sense_are_refused_in_three_parts(text):
    with pytest.raises(InputError) as error:
        read_foreign([parse_document("x.yaml", text)])
    assert error.value.found
    assert error.value.expected
    assert error.value.remedy
