"""Imports point one way: from the surfaces down to plain data, and never to ComfyUI."""

from __future__ import annotations

from architecture.source import absolute_imports, internal_imports, sources

_GROUND = {
    "allowed",
    "config",
    "counters",
    "errors",
    "finiteness",
    "printable",
    "storage",
    "streaming",
    "temporary",
    "text_files",
    "types",
}
_WORKSHOP = _GROUND | {"data", "diffusion", "adapters", "formats", "families"}

ALLOWED = {
    "errors": set(),
    "types": set(),
    "counters": set(),
    "finiteness": set(),
    "owners": set(),
    "temporary": {"owners"},
    "storage": {"errors", "temporary"},
    "locks": {"owners", "storage", "temporary", "text_files"},
    "streaming": {"errors", "storage"},
    "requirements": {"errors"},
    "allowed": {"errors"},
    "printable": set(),
    "text_files": {"errors"},
    "config": {"errors", "printable", "text_files"},
    "diffusion": {"errors"},
    "data": _GROUND,
    "adapters": _GROUND,
    "formats": _GROUND | {"adapters"},
    "families": _GROUND | {"formats", "data", "diffusion"},
    "training": _WORKSHOP | {"locks"},
    "demo": _WORKSHOP | {"training"},
    "commands": _WORKSHOP | {"training", "demo", "requirements"},
    "cli": {"commands", "errors"},
    "__main__": {"cli"},
    # The public names are resolved on first use.
    "__init__": {"adapters", "config", "errors", "families", "training"},
}
"""Package or module of trainer_core, to what it may import of trainer_core besides itself."""

_HOST = {"comfy", "comfy_api", "comfy_extras", "folder_paths", "server", "execution", "nodes"}


def upward_imports(package: str, imported: list[str]) -> list[str]:
    """Those of the imported names that the package may not import."""
    allowed = ALLOWED[package] | {package, "__version__"}
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


def test_core_imports_itself_relatively_and_never_the_host():
    wrong = {
        source.path: name
        for source in sources("trainer_core")
        for name, _ in absolute_imports(source)
        if name.split(".")[0] in _HOST | {"trainer_core"}
    }
    assert wrong == {}


def test_the_loop_names_no_family_kind_or_layout():
    loop = next(s for s in sources("trainer_core") if s.path == "trainer_core/training/loop.py")
    words = ("qwen", "flux", "lokr", "loha", "lora", "comfyui", "diffusers", "paired")
    assert [word for word in words if word in loop.text.lower()] == []
