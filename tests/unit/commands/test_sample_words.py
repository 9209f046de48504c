"""The words of `sample` become the preview section of the run."""

import pytest

from trainer_core.cli import main
from trainer_core.commands.runs import with_prompts
from trainer_core.config import RunConfig
from trainer_core.errors import ConfigError

_FILE = RunConfig.model_validate({"preview": {"prompts": ["a", "b"], "controls": [["x"], ["y"]]}})


def test_controls_that_do_not_fit_the_variant_are_refused():
    config = RunConfig.model_validate({"base": {"variant": "generate"}})
    with pytest.raises(ConfigError, match=r"base\.variant is generate"):
        with_prompts(config, ["a"], ["x.png"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["adapter=none.safetensors", "prompt=a"], "none.safetensors"),
        (["adapter=.", "prompt=a"], "a folder without adapter_model.safetensors"),
        (["strength=much", "prompt=a"], "strength=much"),
        (["width=0", "prompt=a"], "preview.width is 0"),
        (["widht=64", "prompt=a"], "preview.width"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_loaded(words, named, capsys):
    assert main(["sample", *words]) == 2
    assert named in capsys.readouterr().err


def test_given_prompts_and_controls_replace_those_of_the_run_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_prompts(_FILE, [], []).preview == _FILE.preview
    preview = with_prompts(_FILE, ["c"], []).preview
    assert (preview.prompts, preview.controls) == (["c"], [])
    preview = with_prompts(_FILE, ["c", "d"], ["one.png"]).preview
    assert preview.controls == [[str(tmp_path / "one.png")]] * 2
    with pytest.raises(ConfigError, match="prompt=TEXT"):
        with_prompts(RunConfig(), [], [])
