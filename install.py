"""Installs what training needs into the Python that runs this file, and moves nothing else.

ComfyUI's manager runs it after ``requirements.txt``; by hand: ``python install.py`` with ComfyUI's
Python. A constraints file holds everything that is installed already at its version, so that the
resolver chooses the newest Diffusers, PEFT and accelerate which fit beside it. The ranges are those
of ``pyproject.toml``.

Other packs may have left an environment whose packages do not fit each other, and then no resolver
finds an answer. So, only where one says that there is a conflict, what the pack promises alone is
held (`HOST_OWNED`); and at last our libraries are installed without their dependencies, in versions
whose own needs are met. Where nothing fits, nothing is changed, and what is in the way is named.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACK = Path(__file__).resolve().parent
HOST_LIBRARIES = ("torch", "transformers", "numpy")
"""Of what the host owns, what a ComfyUI always has: without it this is the wrong Python."""

# PEP 440, appendix B, as far as installed distributions use it; others stop pip.
_VALID = re.compile(
    r"(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)

# What pip and uv say where versions do not fit each other; anything else (no network, a full disk)
# would fail again.
_CONFLICT = ("ResolutionImpossible", "conflicting dependencies", "No solution found")
_MOST_TRIES = 12
_MOST_NAMED = 5


class Unmet(NamedTuple):
    """A need of an installed distribution that the environment does not meet.

    Attributes:
        by: The distribution that needs it, normalised.
        need: What it needs, normalised.
        line: The need as an installer takes it.
        text: Both with their versions, for a person.
        absent: Whether the needed one is not installed at all.
    """

    by: str
    need: str
    line: str
    text: str
    absent: bool


def main(words: Sequence[str] | None = None) -> int:
    """Install.

    Args:
        words: The command line without the program; unset: that of this process.

    Returns:
        0 when everything that training needs is there, 1 when not, with the reason. Words that are
        not understood end the program with 2.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path or an installer's line may have letters that the code page lacks.
            stream.reconfigure(errors="backslashreplace")
    asked = arguments(words)
    facts = load_requirements()
    before = installed_versions(facts)
    wanted = facts.guest_requirements(PACK)
    problem = host_problem(before, facts)
    if problem is not None:
        return refuse(*problem)
    lacking = [need for need in wanted if not satisfied(need, before, facts)]
    if not lacking:
        say("Everything is there: " + described((need.name for need in wanted), before) + ".")
        return 0
    if asked.dry_run:
        say("Would install " + ", ".join(map(str, lacking)) + f" into {sys.prefix}.")
        say("Would hold as they are: " + described(facts.HOST_OWNED, before) + ", and all else.")
        return 0
    command = installer_command(sys.executable)
    if command is None:
        return refuse(
            f"neither pip nor uv for {sys.executable}",
            "one of them, to install " + ", ".join(map(str, lacking)),
            f"Install pip with {facts.shell_word(sys.executable)} -m ensurepip, or put uv on the "
            "PATH; then run this file again.",
        )
    say("Installing " + ", ".join(map(str, lacking)) + f" into {sys.prefix}.")
    say("Held as they are: " + described(facts.HOST_OWNED, before) + ", and all else.")
    code = install(command, wanted, lacking, before, facts)
    importlib.invalidate_caches()
    return report(code, before, installed_versions(facts), lacking, facts)


def install(
    command: list[str],
    wanted: Sequence[Any],
    lacking: Sequence[Any],
    before: Mapping[str, str],
    facts: ModuleType,
) -> int:
    """Install what is lacking, holding as much as the environment lets.

    Returns:
        The last installer's exit code; where it failed, nothing was added.
    """
    names, free = [str(need) for need in wanted], [need.name for need in lacking]
    code, said = resolve(command, names, before, free)
    if not code or not _is_conflict(said):
        return code
    say(
        "What is installed does not fit together. Holding only "
        + described(facts.HOST_OWNED, before)
    )
    promised = {name: before[name] for name in facts.HOST_OWNED if name in before}
    code, said = resolve(command, names, promised, free)
    if not code or not _is_conflict(said):
        return code
    say("That does not fit either. Installing without dependencies, as far as each is met.")
    return install_alone(command, lacking, before, facts)


def _is_conflict(said: str) -> bool:
    return any(mark in said for mark in _CONFLICT)


def install_alone(
    command: list[str], lacking: Sequence[Any], before: Mapping[str, str], facts: ModuleType
) -> int:
    """Install without dependencies, the newest versions whose own needs are met.

    What a version needs and is not there comes the same way. A version that needs another version
    of something that was installed before is tried again without it.

    Returns:
        0, or 1 when nothing fits; then what was added is removed again.
    """
    asked = {need.name: str(need) for need in lacking}
    for _ in range(_MOST_TRIES):
        code, _said = run([*command, "--no-deps", *asked.values()])
        importlib.invalidate_caches()
        after = installed_versions(facts)
        added = [name for name in asked if after.get(name) != before.get(name)]
        unmet = [each for each in unmet_needs(facts) if each.by in added]
        if code or not unmet:
            break
        for each in unmet:
            if each.absent:
                asked.setdefault(each.need, each.line)
            else:
                say(f"{each.text}; trying another version of {each.by}.")
                comma = "," if re.search("[<>=!]", asked[each.by]) else ""
                asked[each.by] += f"{comma}!={after[each.by]}"
    else:
        code = 1
    if code:
        put_back(command, before, facts)
    return code


def put_back(command: list[str], before: Mapping[str, str], facts: ModuleType) -> None:
    """Undo an installation that did not come to an end."""
    importlib.invalidate_caches()
    after = installed_versions(facts)
    new = [name for name in after if name not in before]
    if new:
        verb = command.index("install")
        with_uv = any(Path(word).stem == "uv" for word in command[:verb])
        sure = ["--python", sys.executable] if with_uv else ["-y"]
        run([*command[:verb], "uninstall", *sure, *new])
    moved = [held(name, before) for name in before if after.get(name) not in {None, before[name]}]
    if moved:
        run([*command, "--no-deps", *(line for line in moved if line)])


def unmet_needs(facts: ModuleType) -> Iterator[Unmet]:
    """What installed distributions need and do not find; nothing where no parser is at hand."""
    parser = _requirement_parser()
    if parser is None:
        return
    installed = installed_versions(facts)
    for distribution in importlib.metadata.distributions():
        metadata: Any = distribution.metadata
        owner = facts.normalised(metadata.get("Name") or "")
        for line in distribution.requires or () if owner else ():
            try:
                need = parser(line)
                wanted = need.marker is None or need.marker.evaluate({"extra": ""})
            except ValueError:  # not as PEP 508 has it
                continue
            name = facts.normalised(need.name)
            found = installed.get(name)
            if wanted and (found is None or not need.specifier.contains(found, prereleases=True)):
                there = f"{found} is installed" if found else "it is not installed"
                text = (
                    f"{owner} {installed.get(owner, '')} needs {name}{need.specifier}, and {there}"
                )
                yield Unmet(owner, name, f"{name}{need.specifier}", text, found is None)


def _requirement_parser() -> Any:
    """What reads ``name<2; marker``: packaging, or pip's copy of it; None without."""
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return importlib.import_module(module).Requirement
        except ImportError:
            continue
    return None


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; ``--help`` and mistakes end the program."""
    parser = argparse.ArgumentParser(
        prog="install.py",
        description="Installs what training needs into the Python that runs this file, and moves "
        "nothing else.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be installed, and install nothing"
    )
    return parser.parse_args(words)


def report(
    code: int,
    before: Mapping[str, str],
    after: Mapping[str, str],
    asked: Collection[Any],
    facts: ModuleType,
) -> int:
    """Say what came of it.

    Args:
        code: What the installer returned.
        before: Installed versions before it ran.
        after: Those afterwards.
        asked: The requirements that were not met before.
        facts: ``trainer_core/requirements.py``.

    Returns:
        The exit code of this program.
    """
    lacking = [need for need in asked if not satisfied(need, after, facts)]
    names = [need.name for need in asked]
    others = changes(before, after, names)
    moved = {name: text for name, text in others.items() if name in facts.HOST_OWNED}
    if moved:
        back = " ".join(f'"{name}=={before[name]}"' for name in moved)
        return refuse(
            "the installer changed what it was told to hold: " + ", ".join(moved.values()),
            "every installed package at its version",
            f"Put it back: pip install --no-deps {back}. Then report this with the output above.",
        )
    if code or lacking:
        in_the_way = [each.text for each in unmet_needs(facts)]
        rest = len(in_the_way) - _MOST_NAMED
        named = [*in_the_way[:_MOST_NAMED], *([f"and {rest} more"] if rest > 0 else [])]
        return refuse(
            f"{', '.join(map(str, lacking or asked))} could not be installed beside "
            + described(facts.HOST_OWNED, after)
            + (f". Not in order before: {'; '.join(named)}" if named else ""),
            "versions that fit together; nothing that was installed has changed",
            "The installer's output above names the reason. Without a network: run this file again "
            "with one. When it names a package that is too old: update ComfyUI and its "
            "requirements, then run this file again.",
        )
    say("Installed: " + described(names, after) + ".")
    came = [name for name in after if name not in before and name not in names]
    if came:
        say("With them came: " + described(sorted(came), after) + ".")
    if others:
        say("Changed, because nothing else fits: " + ", ".join(others.values()) + ".")
    else:
        say("Nothing else changed its version.")
    say("Restart ComfyUI.")
    return 0


def load_requirements() -> ModuleType:
    """Load ``trainer_core/requirements.py`` by its path.

    An embedded Python does not look for modules beside a script, and the rest of the package may
    need what is not installed yet.
    """
    path = PACK / "trainer_core" / "requirements.py"
    spec = importlib.util.spec_from_file_location("adapter_trainer_requirements", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed_versions(facts: ModuleType) -> dict[str, str]:
    """Every installed distribution's version, by normalised name; the first on the path counts."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # What a broken installation left behind has no name or no version.
        metadata: Any = distribution.metadata
        name, version = metadata.get("Name"), metadata.get("Version")
        if name and version:
            found.setdefault(facts.normalised(name), version)
    return found


def host_problem(installed: Mapping[str, str], facts: ModuleType) -> tuple[str, str, str] | None:
    """What of the host's own libraries training cannot work with: found, expected, remedy."""
    absent = [name for name in HOST_LIBRARIES if name not in installed]
    if absent:
        return (
            f"{sys.executable} has no {', '.join(absent)}",
            "the Python that runs ComfyUI, with ComfyUI's own requirements installed",
            "Run this file with ComfyUI's Python. For training on the command line alone: "
            'pip install ".[train]" in this folder.',
        )
    needs = [need for need in facts.all_requirements(PACK) if need.name in facts.HOST_OWNED]
    old = [need for need in needs if not satisfied(need, installed, facts)]
    if old:
        return (
            ", ".join(f"{need.name} {installed[need.name]}" for need in old),
            ", ".join(map(str, old)) + ", which this pack leaves to ComfyUI",
            "Update ComfyUI and its requirements, then run this file again. Nothing was changed.",
        )
    unclear = [name for name in facts.HOST_OWNED if name in installed and not held(name, installed)]
    if unclear:
        return (
            f"{described(unclear, installed)}: no installer can hold such a version",
            "a version number as PEP 440 has it",
            "Reinstall this package, then run this file again. Nothing was changed.",
        )
    return None


def satisfied(need: Any, installed: Mapping[str, str], facts: ModuleType) -> bool:
    """Whether a requirement is met by what is installed."""
    return need.name in installed and facts.meets(installed[need.name], need.minimum)


def held(name: str, installed: Mapping[str, str]) -> str | None:
    """The line that holds a distribution, or None when its version is none to an installer.

    The label of a build stays in it, as in ``torch==2.8.0+cu128``: without, another build would do.
    """
    version = installed[name]
    return f"{name}=={version}" if _VALID.fullmatch(version) else None


def constraint_lines(installed: Mapping[str, str], free: Collection[str]) -> list[str]:
    """Hold everything that is installed.

    Args:
        installed: Versions by normalised name.
        free: Names that may change: those that are too old.

    Returns:
        One line for each distribution.
    """
    lines = (held(name, installed) for name in sorted(installed) if name not in free)
    return [line for line in lines if line is not None]


def installer_command(python: str) -> list[str] | None:
    """The beginning of ``pip install`` or ``uv pip install`` for this Python, or None."""
    # Without the user's own folder where the host runs without it.
    isolated = ["-s"] if sys.flags.no_user_site else []
    if _has("pip"):
        quiet = ["--disable-pip-version-check", "--no-input"]
        strategy = ["--upgrade-strategy", "only-if-needed"]
        return [python, *isolated, "-m", "pip", "install", *quiet, *strategy]
    if _has("uv"):
        return [python, *isolated, "-m", "uv", "pip", "install", "--python", python]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", python] if uv else None


def _has(package: str) -> bool:
    """Whether a package is installed, without asking the import hooks of others.

    That of setuptools gives this process another ``distutils`` when it is asked for pip, and then
    refuses to import setuptools, which torch needs to compile.
    """
    return importlib.machinery.PathFinder.find_spec(package) is not None


def resolve(
    command: list[str], wanted: list[str], installed: Mapping[str, str], free: Collection[str]
) -> tuple[int, str]:
    """Run the installer with everything held.

    Args:
        command: `installer_command`.
        wanted: What to install, such as ``peft>=0.18``.
        installed: Versions to hold.
        free: Names not to hold.

    Returns:
        The installer's exit code, and what it said. It resolves and downloads before it changes
        anything.
    """
    with tempfile.TemporaryDirectory(prefix="adapter_trainer_") as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text("\n".join(constraint_lines(installed, free)) + "\n", encoding="utf-8")
        # Index, proxy and certificates come from the environment, as for every other package.
        return run([*command, "-c", str(file), *wanted])


def run(command: Sequence[str]) -> tuple[int, str]:
    """Run an installer; what it says goes through, and is given back with its exit code."""
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    return process.returncode, "".join(said)


def changes(
    before: Mapping[str, str], after: Mapping[str, str], asked: Collection[str]
) -> dict[str, str]:
    """What was installed before, was not asked for, and is not as it was.

    Returns:
        ``numpy 1.26.4 -> 2.4.6`` by name.
    """
    return {
        name: f"{name} {version} -> {after.get(name, 'removed')}"
        for name, version in before.items()
        if name not in asked and after.get(name) != version
    }


def described(names: Any, versions: Mapping[str, str]) -> str:
    """Names with their versions, those that are installed."""
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def say(line: str) -> None:
    """Print a line, before the installer prints its own."""
    print(f"Adapter Trainer: {line}", flush=True)


def refuse(found: str, expected: str, remedy: str) -> int:
    """Print why training will not work, in three parts; returns the exit code."""
    sys.stdout.flush()
    for title, text in (("Found", found), ("Expected", expected), ("To do", remedy)):
        print(f"Adapter Trainer: {title}: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
