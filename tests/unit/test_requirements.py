"""What training needs, read from one place, and what of it is missing."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.tables import table

from trainer_core.requirements import (
    HOST_OWNED,
    MissingLibrary,
    all_requirements,
    guest_requirements,
    installed_version,
    meets,
    missing_requirements,
    normalised,
    parse_requirement,
    pyproject_list,
    remedy,
    require_libraries,
    shell_word,
)

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def requirement_lines(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("project", "dependencies"),
        ("project", "classifiers"),
        ("project.optional-dependencies", "train"),
        ("project.optional-dependencies", "tensorboard"),
        ("project.optional-dependencies", "dev"),
        ("tool.ruff", "extend-exclude"),
        ("tool.pytest.ini_options", "markers"),
    ],
)
def test_lists_are_read_as_tomllib_reads_them(section, key):
    import tomllib

    expected = tomllib.loads(PYPROJECT)
    for name in section.split("."):
        expected = expected[name]
    assert pyproject_list(PYPROJECT, section, key) == expected[key] != []


def test_requirements_are_the_projects_and_the_extras():
    names = [requirement.name for requirement in all_requirements()]
    assert {"numpy", "pydantic", "torch", "diffusers", "peft", "accelerate"} <= set(names)
    assert not {"pytest", "tensorboard"} & set(names)
    guests = [requirement.name for requirement in guest_requirements()]
    assert guests == [name for name in names if name not in HOST_OWNED]
    assert {"torch", "transformers", "numpy"} <= set(names) - set(guests)


def test_the_requirements_file_is_the_projects_dependencies_but_what_the_host_owns():
    """The manager installs it unconstrained: none of these depends on what must not move."""
    listed = requirement_lines("requirements.txt")
    declared = pyproject_list(PYPROJECT, "project", "dependencies")
    assert sorted(listed) == sorted(
        line for line in declared if parse_requirement(line).name not in HOST_OWNED
    )


def test_nothing_in_the_requirements_file_depends_on_what_the_host_owns():
    def needs(name):
        lines = importlib.metadata.requires(name) or []
        plain = [line for line in lines if "extra ==" not in line]
        return {
            normalised(line.split(";")[0].split()[0].rstrip("<>=!~0123456789.,")) for line in plain
        }

    waiting = [parse_requirement(line).name for line in requirement_lines("requirements.txt")]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and installed_version(name):
            seen.add(name)
            waiting += needs(name)
    assert {"pydantic", "pydantic-core"} <= seen
    assert not seen & set(HOST_OWNED)
    assert needs("transformers") & set(HOST_OWNED), "the walk sees no dependency"


@pytest.mark.parametrize(("version", "minimum", "expected"), table(__file__, "versions"))
def test_versions_are_compared_as_numbers(version, minimum, expected):
    assert meets(version, minimum) is expected


def test_nothing_is_missing_here():
    assert missing_requirements() == []
    require_libraries()


def test_the_remedy_is_the_packs_own_script_and_comfyuis_update():
    assert str(MissingLibrary("peft", "0.18", None)) == "peft is not installed"
    assert str(MissingLibrary("peft", "0.18", "0.17.1")) == "peft 0.17.1 is older than 0.18"
    ours = remedy([MissingLibrary("peft", "0.18", None)])
    command = f"{shell_word(sys.executable)} {shell_word(ROOT / 'install.py')}"
    assert ours == f"Run {command} and restart ComfyUI."
    hosts = remedy([MissingLibrary("transformers", "4.56", "4.50.3")])
    assert hosts.startswith("Update ComfyUI and its requirements (transformers). Then run ")


def test_asking_imports_no_library():
    probe = (
        "import sys; from trainer_core.requirements import missing_requirements as ask; ask();"
        "print({'torch', 'diffusers', 'peft', 'transformers', 'accelerate'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
