"""The commented run file says what its preset says, and the previews of a preset show its goal."""

import pytest

from trainer_core.config.presets.prompts import preview_prompts
from trainer_core.config.preview import parse_prompt
from trainer_core.errors import ConfigError
from trainer_core.families.presets import GOALS
from trainer_core.families.run_files import (
    load_config,
    run_file_template,
    template_config,
    templates,
)

PURPOSES = [(family, purpose) for family, each in templates().items() for purpose in each]


@pytest.mark.parametrize(("family", "purpose"), PURPOSES)
def test_template_reads_back_as_its_preset(family, purpose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(run_file_template(family, purpose), encoding="utf-8")
    config = load_config(path)
    assert config == template_config(family, purpose)
    assert config.family == family


@pytest.mark.parametrize(
    ("family", "purpose", "near"),
    [("qwen", "generate", "qwen_image"), ("flux", "edits", "edit"), ("flux", "tiny", None)],
)
def test_unknown_name_is_refused_with_the_nearest(family, purpose, near):
    with pytest.raises(ConfigError) as caught:
        run_file_template(family, purpose)
    if near:
        assert near in caught.value.remedy


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("goal", GOALS)
def test_previews_show_own_captions_and_others_behind_the_trigger_word(goal, embedded):
    own = ["ohwx, a lighthouse by a red house", "the ohwx\nat night"]
    found = preview_prompts(goal, " ohwx ", own, embedded=embedded)
    assert 2 <= len(found) <= 4
    assert found[0] == own[0]
    assert ("the ohwx at night" in found) == embedded
    assert all("ohwx" in prompt and "{" not in prompt for prompt in found)
    without = preview_prompts(goal, "ohwx", [], embedded=embedded)
    assert without
    assert all(prompt.startswith("ohwx") for prompt in without)
    assert (without[0] == "ohwx") == embedded
    # A caption may hold anything; it is not a template.
    assert preview_prompts(goal, "", ["{x} {0}"], embedded=embedded)[0] == "{x} {0}"
    flagged = preview_prompts(goal, "", ["a cat --ar 16:9 --w 5"], embedded=embedded)[0]
    assert parse_prompt(flagged) == ("a cat -- ar 16:9 -- w 5", {})
