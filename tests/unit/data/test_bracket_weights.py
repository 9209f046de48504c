"""Round brackets of captions are trained as letters where a tokenizer reads weights."""

import pytest
from fixtures.tables import table

from trainer_core.config import DatasetSection
from trainer_core.data.captions.bracket_weights import escaped_brackets, has_weights
from trainer_core.data.report.caption_findings import bracket_findings
from trainer_core.types import Sample

CASES = table(__file__, "brackets of captions")


@pytest.mark.parametrize(("caption", "written", "weighs"), CASES)
def test_brackets_become_letters_and_numbers_stay_weights(caption, written, weighs):
    assert escaped_brackets(caption) == written
    assert escaped_brackets(written) == written
    assert has_weights(written) == weighs


@pytest.mark.parametrize(
    ("caption", "weighs"),
    [(":) (a)", False), ("(a (b)", True), ("(a (b) c", False), (") ( (c)", True), (r"(a\)", False)],
)
def test_brackets_weigh_as_comfyui_pairs_them(caption, weighs):
    assert has_weights(caption) == weighs


@pytest.mark.parametrize("escape", [True, False])
def test_a_report_says_what_becomes_of_them(tmp_path, escape):
    texts = ["miku (vocaloid)", r"miku \(vocaloid\)", "(red:1.2)", "a cat"]
    samples = [Sample(f"{at}.png", tmp_path, text, 64, 64) for at, text in enumerate(texts)]
    dataset = DatasetSection(path="d", captions={"escape_brackets": escape})
    found = {each.kind: each.names for each in bracket_findings(samples, dataset)}
    kept, weigh = {"brackets_kept": ("0.png",)}, {"brackets_weigh": ("2.png",)}
    assert found == ({**kept, **weigh} if escape else {"brackets_weigh": ("0.png", "2.png")})
