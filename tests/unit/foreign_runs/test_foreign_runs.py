"""Run files of other trainers: which program, which settings, and what is said of the rest."""

import json
from pathlib import Path

import pytest
import yaml
from fixtures import foreign_files as files

from scripts.build_other_trainers import MARK, PAGE, tables
from tests.fixtures.combinations import some
from trainer_core.cli import main
from trainer_core.config.run import RunConfig, find_setting
from trainer_core.errors import InputError
from trainer_core.families.run_files import load_config
from trainer_core.foreign_runs import NamedFiles, command_document, in_reading_order, read_foreign
from trainer_core.foreign_runs.conversion import Cases, Maps
from trainer_core.foreign_runs.documents import parse_document
from trainer_core.foreign_runs.registry import PROGRAMS

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FILES = yaml.safe_load((FIXTURES / "foreign_settings.yaml").read_text(encoding="utf-8"))
SIGMA, SETS = "musubi_sigma.sh", "musubi_datasets.toml"
NO_FAMILY = {"musubi_toml.toml", SETS, "sd_scripts_datasets.toml", "diffusion_pipe_dataset.toml"}


def document(name):
    return parse_document(name, (FIXTURES / "foreign_files" / name).read_text(encoding="utf-8"))


def read(name, **options):
    options.setdefault("family", "z_image" if name in NO_FAMILY else "")
    return read_foreign([document(name)], in_graph=name == "sd_scripts_sdxl.toml", **options)


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_settings_of_the_program_that_it_is_of(name):
    run = read(name)
    expected = FILES[name]
    assert (run.program, run.certainty) == (expected["program"], "certain")
    assert {path: run.values.get(path) for path in expected["says"]} == expected["says"]
    assert [note.key for note in run.outcome("unknown")] == expected.get("unknown", [])
    if name == SIGMA:
        assert read_foreign([command_document(files.MUSUBI_SIGMA)]).values == run.values


@pytest.mark.parametrize("name", some(FILES, *list(FILES)[::3]))
def test_the_run_file_says_the_same_again_and_tells_every_key(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = read(name)
    config = run.config()
    path = tmp_path / "run.yaml"
    path.write_text(run.run_file(), encoding="utf-8")
    assert load_config(path) == config
    assert read(name).run_file() == run.run_file()
    text = " ".join(run.run_file().replace("\n", " ").replace("#", " ").split())
    for note in run.notes:
        if note.outcome != "exact":
            assert " ".join(note.key.split()) in text, note


def test_defaults_of_the_other_program_are_written_where_they_are_not_ours():
    run = read(SIGMA)
    assert "musubi-tuner's default of network_dim" in run.run_file()
    assert {note.key for note in run.outcome("default")} >= {"network_dim", "learning_rate"}


def test_files_that_a_file_names_are_read_where_they_may(tmp_path):
    command = files.MUSUBI_SIGMA + " --dataset_config sets.toml --sample_prompts p.txt"
    command += " --sample_every_n_steps 25"
    (tmp_path / "sets.toml").write_text(files.MUSUBI_DATASETS, encoding="utf-8")
    prompts = "# none\na cat --w 640 --h 512 --s 12 --n bad --x 3\na dog --w 640\n"
    (tmp_path / "p.txt").write_text(prompts, encoding="utf-8")
    given = parse_document(str(tmp_path / "c.txt"), command)
    run = read_foreign([given], beside=NamedFiles(given.name))
    assert run.values["dataset.path"] == "/data/cats"
    assert run.values["preview.prompts"] == ["a cat --h 512 --s 12 --n bad", "a dog"]
    assert (run.values["preview.width"], run.values["preview.every"]) == (640, 25)
    assert "sample_prompts (x)" in {note.key for note in run.outcome("lacking")}
    alone = read_foreign([given])
    assert "dataset.path" not in alone.values
    lost = {note.key for note in alone.outcome("lacking")}
    assert {"dataset_config", "sample_prompts"} <= lost
    both = read_foreign([given, document(SETS)])
    assert both.values["dataset.path"] == "/data/cats"


def test_settings_of_the_tables_exist_and_their_defaults_fit():
    for program in PROGRAMS:
        for table in program.tables.values():
            for row in table.rows:
                settings = [row.setting] if isinstance(row, Maps) else []
                for case in row.cases if isinstance(row, Cases) else ():
                    settings += [setting for setting, _ in case.settings]
                assert all(map(find_setting, settings)), (program.name, row.keys)


def test_a_value_that_our_setting_cannot_have_is_left_out_and_told():
    run = read_foreign(
        [parse_document("x.yaml", files.AI_TOOLKIT.replace("linear: 24", "linear: 9999"))]
    )
    assert "adapter.rank" not in run.values
    (note,) = [each for each in run.outcome("lacking") if each.key == "network.linear"]
    assert "at most 4096" in note.why


def test_texts_of_a_stranger_stay_comments():
    evil = "x\\u2028seed: 5\\nseed: 6\\u0085seed: 7"
    text = files.AI_TOOLKIT_JSON.replace('"strange"', f'"{evil}"').replace(
        '"x": 1', f'"x": "{evil}"'
    )
    run = read_foreign([parse_document("x.json", text)])
    assert len(run.outcome("unknown")) == 1
    assert load_config({}).seed == 0
    assert yaml.safe_load(run.run_file())["seed"] == RunConfig().seed


def test_the_page_has_the_tables_that_are_read_by():
    assert PAGE.read_text(encoding="utf-8").partition(MARK)[2] == tables().removeprefix(MARK)


def test_template_writes_a_run_file_of_a_file_or_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boats.yaml").write_text(files.AI_TOOLKIT, encoding="utf-8")
    own = ["base.path=embedded", "dataset.path=pictures", "dataset.folders=[]"]
    own += ["dataset.resolution=64", "dataset.more_resolutions=[]", "memory.base_format=auto"]
    assert main(["template", "--from", "boats.yaml", "run.yaml", *own]) == 0
    assert "ai-toolkit (certain)" in "".join(capsys.readouterr())
    assert main(["template", "--from", "boats.yaml", "run.yaml"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert load_config(tmp_path / "run.yaml").dataset.path == str(tmp_path / "pictures")
    assert main(["template", "--from-command", files.MUSUBI_SIGMA, "--json"]) == 0
    out = capsys.readouterr().out
    told = next(json.loads(line) for line in out.splitlines() if '"musubi-tuner"' in line)
    assert {note["outcome"] for note in told["notes"]} >= {"exact", "default"}


OTHERS = [
    parse_document("a.json", '{"job": "a word that many files have"}'),
    parse_document("b.yaml", "services: {web: {image: x}}"),
    parse_document("c.toml", "[tool.black]\nline-length = 100"),
    parse_document("d.json", '[{"path": "x"}]'),
]


@pytest.mark.parametrize("name", FILES)
def test_a_run_file_is_found_among_files_that_are_none(name):
    found = in_reading_order([*OTHERS, document(name)])
    # OneTrainer has lists of concepts in files of their own.
    beside = OTHERS[3:] if FILES[name]["program"] == "OneTrainer" else []
    assert found == [document(name), *beside]
    assert in_reading_order(OTHERS) == []


def test_files_of_which_each_says_all_are_refused_together():
    both = [parse_document(name, files.AI_TOOLKIT) for name in ("a.yaml", "b.yaml")]
    with pytest.raises(InputError, match=r"a\.yaml, b\.yaml together"):
        read_foreign(both)


def test_an_accuracy_recovery_adapter_repairs_the_format_that_it_was_made_for(tmp_path):
    def values(qtype):
        name = "ai_toolkit.yaml"
        text = (FIXTURES / "foreign_files" / name).read_text(encoding="utf-8")
        changed = text.replace("qtype: qfloat8", f"qtype: {qtype}")
        assert changed != text
        run = read_foreign([parse_document(name, changed)])
        run.config()
        return run, run.values

    run, found = values("uint3|ostris/ara/qwen_image_torchao_uint3.safetensors")
    assert found["memory.base_format"] == "uint3"
    (adapter,) = found["base.adapters"]
    assert (Path(adapter["path"]).name, adapter["when"]) == (
        "qwen_image_torchao_uint3.safetensors",
        "quantized",
    )
    run, found = values("qfloat8|ara.safetensors")
    assert "base.adapters" not in found
    assert [e.key for e in run.outcome("lacking")].count("model.accuracy_recovery_adapter") == 1
