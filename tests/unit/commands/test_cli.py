"""Verbs, exit codes, and errors in three parts."""

import json
import os
import subprocess
import sys

import pytest

from tests.fixtures.tables import table
from trainer_core.cli import main
from trainer_core.commands import VERBS
from trainer_core.commands.allocator import allocator_report
from trainer_core.errors import StorageError
from trainer_core.families.run_files import load_config
from trainer_core.version import __version__


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_a_function(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"adapter-trainer {verb}")
    from importlib import import_module

    assert callable(getattr(import_module(f"trainer_core.commands.{VERBS[verb].module}"), verb))


@pytest.mark.parametrize(
    ("platform", "own", "found"),
    [
        ("linux", {}, ["expandable_segments:True"] * 2),
        ("linux", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, ["max_split_size_mb:64", None]),
        ("linux", {"PYTORCH_CUDA_ALLOC_CONF": ""}, [None, ""]),
        ("linux", {"PYTORCH_HIP_ALLOC_CONF": "garbage_collection_threshold:0.8"}, [None, None]),
        ("win32", {}, [None, None]),
        ("5.15.153.1-microsoft-standard-WSL2", {}, [None, None]),
        ("5.15.148-tegra", {}, [None, None]),
    ],
)
def test_cudas_memory_grows_in_place_unless_the_user_says_otherwise(
    monkeypatch, platform, own, found
):
    monkeypatch.setattr(sys, "platform", "linux" if "." in platform else platform)
    monkeypatch.setattr("platform.release", lambda: platform)
    monkeypatch.setattr("os.environ", dict(own))
    main(["--version"])
    assert [os.environ.get(f"PYTORCH_{each}ALLOC_CONF") for each in ("", "CUDA_")] == found


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("expandable_segments:True", "memory grows in place"),
        ("max_split_size_mb:64, expandable_segments:true", "memory grows in place"),
        ("max_split_size_mb:64", "add expandable_segments:True"),
        ("expandable_segments:False", "add expandable_segments:True"),
        ("", "add expandable_segments:True"),
        ("backend:cudaMallocAsync", "leaves no gaps"),
    ],
)
def test_the_doctor_judges_what_the_environment_says_to_the_allocator(monkeypatch, text, judged):
    monkeypatch.setattr("os.environ", {"PYTORCH_CUDA_ALLOC_CONF": text})
    ((name, said),) = allocator_report().items()
    assert (name, judged in said) == ("PYTORCH_CUDA_ALLOC_CONF", True)


def test_wrong_input_is_exit_code_two_and_three_parts_also_as_json(capsys):
    assert main(["train", "no-such-file.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Found", "Expected", "To do"]
    assert "no-such-file.yaml" in lines[0]
    assert main(["train", "no-such-file.yaml", "--json"]) == 2
    record = json.loads(capsys.readouterr().out)
    assert (record["event"], record["exit_code"]) == ("error", 2)
    assert {"found", "expected", "remedy"} <= set(record)


def test_template_of_a_goal_says_why_and_trains_as_asked(capsys, tmp_path):
    words = ["qwen_image", "style", "thorough", "images=35", "kind=lokr", "vram=12", "trigger=ohwx"]
    assert main(["template", *words]) == 0
    text = capsys.readouterr().out
    assert "of your 35 images" in text
    assert "12 GB of VRAM" in text
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    config = load_config(tmp_path / "run.yaml")
    assert (config.adapter.kind, config.dataset.resolution) == ("lokr", 768)
    assert config.dataset.trigger_word == "ohwx"
    assert config.preview.every > 0
    assert all(each.startswith("ohwx, ") for each in config.preview.prompts)
    assert main(["template", *words, "tflops=45"]) == 0
    assert "512 pixels: about" in capsys.readouterr().out
    assert main(["template", "qwen_image", "edit", "--embedded"]) == 0
    assert "path: embedded" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "told"), table(__file__, "refused_templates"))
def test_template_refuses_what_is_no_goal(words, told, capsys):
    assert main(["template", *words.split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Found", "Expected", "To do"]
    assert told in "".join(lines)


def test_module_and_console_script_are_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"adapter-trainer {__version__}\n")


def test_reader_that_goes_away_is_no_traceback():
    pipe = f"{sys.executable} -m trainer_core template qwen_image | head -n 1"
    done = subprocess.run(pipe, shell=True, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("# A run file")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def _need_a_package():
    import a_package_that_is_not_there  # noqa: F401


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (StorageError("a full disk", "space", "Free some."), 1, ["a full disk"]),
        (KeyboardInterrupt(), 1, ["stopped"]),
        (None, 2, ["a_package_that_is_not_there", "pip install"]),
    ],
    ids=["failed", "stopped", "lacking a package"],
)
def test_what_goes_wrong_has_its_exit_code(error, code, told, monkeypatch, capsys):
    def work(arguments):
        if error is not None:
            raise error
        _need_a_package()

    monkeypatch.setattr("trainer_core.commands.runs.template", work)
    assert main(["template", "flux"]) == code
    said = capsys.readouterr().err
    assert all(word in said for word in told)
