"""Imports point one way: from the surfaces down to plain data, and never to ComfyUI."""

from collections.abc import Iterable

import pytest
from architecture.source import (
    absolute_imports,
    imported_names,
    internal_imports,
    module_name,
    sources,
)
from fixtures.tables import table

GROUPS = table(__file__, "layers groups")


def packages(names: Iterable[str]) -> set[str]:
    """Packages and modules, each group of them by its members."""
    return set().union(*(packages(GROUPS[each]) if each in GROUPS else {each} for each in names))


ALLOWED = {name: packages(may) for name, may in table(__file__, "layers allowed").items()}
"""Package or module of trainer_core, to what it may import of trainer_core besides itself."""

_HOST = {"comfy", "comfy_api", "comfy_extras", "folder_paths", "server", "execution", "nodes"}


def upward_imports(package: str, imported: list[str]) -> list[str]:
    """Those of the imported names that the package may not import."""
    allowed = ALLOWED[package] | {package}
    return [name for name in imported if name.split(".")[0] not in allowed]


def test_imports_of_the_core_point_downwards():
    upward = {
        source.path: found
        for source in sources("trainer_core")
        if (found := upward_imports(source.package, [n for n, _ in internal_imports(source)]))
    }
    assert upward == {}


def test_an_arrow_that_points_up_is_noticed():
    assert upward_imports("data", ["families.qwen_image", "types"]) == ["families.qwen_image"]
    assert upward_imports("diffusion", ["config"]) == ["config"]


def test_walk_finds_the_imports_that_are_there():
    found = {
        (source.package, name.split(".")[0])
        for source in sources("trainer_core")
        for name, _ in internal_imports(source)
    }
    assert {("cli", "commands"), ("training", "families"), ("data", "types")} <= found


def imports_by_module() -> dict[str, set[str]]:
    """Every module of trainer_core to those it imports anywhere: in functions and for types too."""
    names = {source.path: module_name(source.path) for source in sources("trainer_core")}
    known = set(names.values())
    found: dict[str, set[str]] = {}
    for source in sources("trainer_core"):
        module = names[source.path]
        imported = {
            name for each in imported_names(source) for name in (each, each.rpartition(".")[0])
        }
        found[module] = {name for name in imported & known if name} - {module}
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        waiting = [*imports[start]]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += imports.get(name, ())
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached.get(other, ())))
        for name in imports
        if name in reached[name]
    }
    return sorted(map(list, groups))


def test_no_module_imports_itself_through_others():
    assert circles(imports_by_module()) == []


def test_a_circle_is_noticed():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert {"training.run", "adapters.kinds.lora"} <= set(imports_by_module())
    assert "config" in imports_by_module()["training.run"]


def test_core_imports_itself_relatively_and_never_the_host():
    wrong = {
        source.path: name
        for source in sources("trainer_core")
        for name, _ in absolute_imports(source)
        if name.split(".")[0] in _HOST | {"trainer_core"}
    }
    assert wrong == {}


def test_the_trainer_names_no_family_kind_or_layout():
    path = "trainer_core/training/trainer.py"
    trainer = next(each for each in sources("trainer_core") if each.path == path)
    words = ("qwen", "flux", "lokr", "loha", "lora", "comfyui", "diffusers", "paired")
    assert [word for word in words if word in trainer.text.lower()] == []


ROOMS = table(__file__, "layers rooms")
"""Packages to their rooms, the lowest first; what lies beside the rooms is a room of its own."""


def room(package: str, name: str) -> str:
    """The room of a module of the package, named from trainer_core on."""
    return name.removeprefix(f"{package}.").split(".")[0]


def rooms_above(package: str, module: str, imported: list[str]) -> list[str]:
    """Those of the imported names that lie in a room of the package above the module's."""
    rooms = ROOMS[package]
    above = rooms[rooms.index(room(package, module)) + 1 :]
    return [
        name for name in imported if name.startswith(f"{package}.") and room(package, name) in above
    ]


@pytest.mark.parametrize("package", ROOMS)
def test_imports_among_the_rooms_of_a_package_point_downwards(package):
    upward = {
        source.path: found
        for source in _rooms(package)
        if (
            found := rooms_above(
                package, module_name(source.path), [n for n, _ in internal_imports(source)]
            )
        )
    }
    assert upward == {}


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_in_the_list(package):
    found = {room(package, module_name(each.path)) for each in _rooms(package)}
    assert found == set(ROOMS[package])


def test_an_arrow_to_a_higher_room_is_noticed():
    imported = ["adapter_files.read.read_adapter", "adapter_files.metadata"]
    assert rooms_above("adapter_files", "adapter_files.names.x", imported) == imported[:1]


def _rooms(package: str):
    return [
        each for each in sources(f"trainer_core/{package}") if module_name(each.path) != package
    ]
