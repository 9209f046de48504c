"""Settings of one preview behind its prompt."""

import pytest

from trainer_core.config.preview import FLAGS, PreviewSection, parse_prompt, prompt_line
from trainer_core.config.read_run_file import load_config
from trainer_core.errors import ConfigError

LINE = 'a house -- by a lake--side --w 768 --h 512 --d 42 --s 8 --l 3.5 --n "blurry, --- dark"'
SHARED = {"width": 64, "height": 64, "seed": 5, "steps": 2}


def test_flags_of_other_trainers_are_settings_of_one_preview():
    preview = PreviewSection(prompts=["one", LINE, "two"], controls=[["a"], ["b"], ["c"]], **SHARED)
    first, own, last = (preview.of_prompt(line, at) for at, line in enumerate(preview.prompts))
    assert own.prompts == ["a house -- by a lake--side"]
    assert (own.width, own.height, own.seed, own.steps) == (768, 512, 42, 8)
    assert (own.guidance, own.negative_prompt) == (3.5, "blurry, --- dark")
    assert [(each.width, each.seed, each.controls) for each in (first, last)] == [
        (64, 5, [["a"]]),
        (64, 7, [["c"]]),
    ]
    assert preview.largest() == own
    assert PreviewSection(**SHARED).largest() == PreviewSection(**SHARED)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_read_and_what_is_written_is_read_back(flag):
    setting = FLAGS[flag]
    value = "dull" if setting == "negative_prompt" else "64"
    assert parse_prompt(f"x --{flag} {value}") == ("x", {setting: value})
    assert parse_prompt(prompt_line("x", {setting: value})) == ("x", {setting: value})


@pytest.mark.parametrize(
    ("line", "found", "expected"),
    [
        ("x --ar 16:9", "--ar is unknown", "--w (width)"),
        ("x --w", "--w is without a value", "--d (seed)"),
        ("x --l 2 --g 3", "--g is there twice", "--s (steps)"),
        ("x --w 4", "width is '4'", "at least 16"),
        ("x --s 2.5", "steps is '2.5'", "a whole number"),
    ],
)
def test_what_cannot_be_is_refused_in_three_parts(line, found, expected):
    with pytest.raises(ConfigError) as caught:
        load_config({"preview": {"prompts": [line]}})
    assert found in caught.value.found
    assert expected in caught.value.expected
    assert "flag" in caught.value.remedy
