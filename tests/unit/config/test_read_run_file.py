"""Run file and overrides in, settings out; everything wrong is told at once."""

import os
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import foreign_files as files
from tests.fixtures.tables import table
from trainer_core.config import PreviewSection
from trainer_core.config.read_run_file import parse_override
from trainer_core.errors import ConfigError, InputError
from trainer_core.families.run_files import load_config
from trainer_core.foreign_runs import read_foreign
from trainer_core.foreign_runs.documents import parse_document


@pytest.fixture
def run_file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def refusal(source, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return caught.value


@pytest.mark.parametrize("path", [r"D:\new\train", r"D:\photos", r"C:\Users\me", r"D:\0\xa"])
def test_a_windows_path_in_double_quotes_is_told_on_one_line_with_the_cure(path, run_file):
    error = refusal(run_file(f'dataset: {{path: "{path}"}}'))
    assert "\n" not in error.found
    assert "dataset.path is 'D:\\new\\train'" in error.found or path[3] != "n"
    for kept in (f"'{path}'", '"' + path.replace("\\", "/") + '"'):
        assert load_config(run_file(f"dataset: {{path: {kept}}}"))
        if os.name != "nt" and kept[0] == "'":
            assert "output.dir=FOLDER" in refusal(run_file(f"output: {{dir: {kept}}}")).remedy
            assert load_config(run_file(f"output: {{dir: {kept}}}"), ["output.dir=x"])
    for own, parent in ((r"a\b", run_file("").parent / "a"), (r"~/a\b", Path.home() / "a")):
        assert (
            Path(load_config(run_file(f"dataset: {{path: {own}}}")).dataset.path).parent == parent
        )
    for cure in ("single quotes", "/ for each"):
        assert cure in error.remedy
    text = files.AI_TOOLKIT.replace("folder_path: photos/boats", f'folder_path: "{path}"')
    with pytest.raises(InputError, match="single quotes"):
        read_foreign([parse_document("x.yaml", text)]).config()


def test_overrides_win_and_the_last_one_counts(run_file):
    path = run_file("training: {steps: 10, batch_size: 3}")
    config = load_config(path, ["training.steps=20", "training.steps=30", "adapter.kind=lora"])
    assert (config.training.steps, config.training.batch_size) == (30, 3)
    assert config.adapter.kind == "lora"


@pytest.mark.parametrize(("override", "path", "value"), table(__file__, "overrides"))
def test_override_values_are_plain_yaml(override, path, value):
    assert parse_override(override) == (path, value)


@pytest.mark.parametrize("text", ["training.steps", "=3", "training.steps=[1"])
def test_override_that_is_none_is_refused(text):
    with pytest.raises(ConfigError):
        parse_override(text)


def test_paths_are_relative_to_the_run_file_or_the_current_folder(run_file, tmp_path, monkeypatch):
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    path = run_file("""
    base: {path: models/qwen/v1}
    dataset: {path: images}
    adapter: {start_from: first.safetensors}
    preview: {prompts: [a], controls: [[one.png, /two.png]]}
    resume: out/checkpoints/000010
    """)
    config = load_config(path, ["cache.dir=kept"])
    assert config.base.path == str(tmp_path / "models/qwen/v1")
    assert config.dataset.path == str(tmp_path / "images")
    assert config.adapter.start_from == str(tmp_path / "first.safetensors")
    assert config.preview.controls == [[str(tmp_path / "one.png"), str(Path("/two.png"))]]
    assert config.resume == str(tmp_path / "out/checkpoints/000010")
    assert config.output.dir == str(tmp_path / "output")
    assert config.cache.dir == str(here / "kept")


def test_words_and_hub_ids_are_no_paths(run_file, tmp_path):
    config = load_config(run_file("base: {path: Qwen/Qwen-Image}\nresume: latest"))
    assert (config.base.path, config.resume) == ("Qwen/Qwen-Image", "latest")
    (tmp_path / "Qwen" / "Qwen-Image").mkdir(parents=True)
    config = load_config(run_file("base: {path: Qwen/Qwen-Image}"))
    assert config.base.path == str(tmp_path / "Qwen" / "Qwen-Image")


@pytest.mark.parametrize(("text", "nearest"), table(__file__, "unknown_settings"))
def test_unknown_setting_is_named_with_the_nearest(run_file, text, nearest):
    error = refusal(run_file(text))
    assert "is not a setting" in error.found
    assert "run.yaml" in error.found
    if nearest:
        assert error.remedy == f"Did you mean {nearest}?"


@pytest.mark.parametrize(("text", "path", "expected"), table(__file__, "wrong_values"))
def test_wrong_value_is_named_with_what_is_expected(run_file, text, path, expected):
    error = refusal(run_file(text))
    assert path in error.found
    assert expected in error.expected
    assert error.remedy
    assert "1." not in str(error.found)[: len(str(run_file(text))) + 5]


def test_all_problems_are_reported_at_once(run_file):
    error = refusal(run_file("training: {steps: 0, x: 1}\nadapter: {kind: no}"), "seed=a")
    for part in ("4 problems", "training.steps", "training.x", "adapter.kind", "seed is a"):
        assert part in error.found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *table(__file__, "bad_yaml"),
        ("[" * 5000, "cannot be read as YAML"),
        ("x: '" + "a" * 1_000_001 + "'", "characters"),
    ],
)
def test_bad_yaml_is_refused_with_its_place(run_file, text, found):
    path = run_file("")
    path.write_text(text, encoding="utf-8")
    assert found in refusal(path).found


def test_unreadable_files_are_refused(tmp_path):
    assert "there is no file" in refusal(tmp_path / "none.yaml").found
    assert "cannot be read" in refusal(tmp_path).found
    binary = tmp_path / "x.yaml"
    for content, name in {b"\xff\xfe\x00": "UTF-16", "job: é".encode("latin-1"): "UTF-8"}.items():
        binary.write_bytes(content)
        assert f"not {name} text" in refusal(binary).found


def test_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes("\ufeffseed: 3".encode())
    assert load_config(path).seed == 3


def test_file_of_a_newer_trainer_is_refused_before_its_settings(run_file):
    error = refusal(run_file("config_version: 2\nnew_setting: 1"))
    assert "config_version is 2" in error.found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3))
def test_any_text_survives_the_round_trip(texts):
    from trainer_core.config.yaml_dialect import format_yaml, parse_yaml

    values = PreviewSection(prompts=texts).model_dump()
    assert parse_yaml(format_yaml(values), "x") == values


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(),
        st.booleans(),
        st.none(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    )
)
def test_any_value_survives_on_one_line(value):
    from trainer_core.config.yaml_dialect import format_value, parse_yaml

    text = format_value(value)
    assert "\n" not in text
    back = parse_yaml(f"x: {text}", "x")["x"]
    assert back == value
    assert type(back) is type(value)
