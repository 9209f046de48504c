"""What the previews of a preset show."""

from __future__ import annotations

import pytest

from trainer_core.config.presets.prompts import preview_prompts
from trainer_core.families.presets import GOALS


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("goal", GOALS)
def test_every_goal_has_prompts_that_begin_with_the_trigger_word(goal, embedded):
    found = preview_prompts(goal, " ohwx ", ["make it red"], embedded=embedded)
    assert 2 <= len(found) <= 4
    assert all(prompt.startswith("ohwx, ") and "{" not in prompt for prompt in found)
    plain = preview_prompts(goal, "", ["make it red"], embedded=embedded)
    assert [f"ohwx, {prompt}" for prompt in plain] == found


def test_an_edit_shows_its_own_instruction_and_another():
    assert preview_prompts("edit", "", ["", "add a hat"], embedded=False)[0] == "add a hat"
    # A caption may hold anything; it is no template.
    assert preview_prompts("edit", "", ["{x} {0}"], embedded=False)[0] == "{x} {0}"
    assert len(preview_prompts("edit", "", [], embedded=False)) == 1
