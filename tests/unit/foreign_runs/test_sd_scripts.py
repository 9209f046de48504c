"""What arguments of kohya's sd-scripts mean, script by script."""

import pytest
from fixtures.tables import table

from trainer_core.foreign_runs import NamedFiles, command_document, read_foreign
from trainer_core.foreign_runs.kohya import arguments_of
from trainer_core.foreign_runs.registry import PROGRAMS


def read(words, **options):
    return read_foreign([command_document(f"python {words}")], in_graph=True, **options)


@pytest.mark.parametrize(("script", "words", "values", "outcomes"), table(__file__, "sd_scripts"))
def test_an_argument_means_what_its_script_computes(script, words, values, outcomes):
    run = read(f"{script} --pretrained_model_name_or_path m {words}")
    run.config()
    assert {path: run.values.get(path) for path in values} == values
    defaults = {note.key: note.outcome for note in run.outcome("default")}
    found = defaults | {each.key: each.outcome for each in run.notes if each.outcome != "default"}
    assert {key: found.get(key) for key in outcomes} == outcomes


def test_every_argument_of_the_tables_is_told():
    (program,) = [each for each in PROGRAMS if each.name == "sd-scripts"]
    known = arguments_of(program.tables[""])
    words = " ".join(f"--{key} 1" for key in known)
    for script in ("flux_train_network.py", "sdxl_train_network.py", "sd3_train_network.py"):
        fit = "--mixed_precision bf16 --save_precision bf16 --network_args a=1 --optimizer_args b=1"
        run = read(f"{script} {words} {fit}")
        keys = {note.key.partition(" ")[0] for note in run.notes if note.outcome != "default"}
        assert known <= keys
        assert [note.key for note in run.outcome("unknown")] == ["network_args (a)"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.txt", "a cat --w 640 --d 3 --ss euler\na dog --w 640\n"),
        (
            "p.json",
            '[{"prompt": "a cat", "width": 640, "seed": 3, "ss": "euler"}, "a dog --w 640"]',
        ),
        (
            "p.toml",
            "[prompt]\nwidth = 640\n[[prompt.subset]]\nprompt = 'a cat'\nseed = 3\nss = 'euler'\n"
            "[[prompt.subset]]\nprompt = 'a dog'\n",
        ),
    ],
)
def test_prompts_of_samples_are_read_in_each_form(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    run = read(
        f"flux_train_network.py --sample_prompts {name} --sample_every_n_steps 5",
        beside=NamedFiles(str(tmp_path / "c.sh")),
    )
    assert run.values["preview.prompts"] == ["a cat --d 3", "a dog"]
    assert (run.values["preview.width"], run.values["preview.every"]) == (640, 5)
    usual = {name: run.values[f"preview.{name}"] for name in ("height", "guidance")}
    assert usual == {"height": 512, "guidance": 3.5}
    assert "sample_prompts (ss)" in {note.key for note in run.outcome("lacking")}
