"""The nodes are thin, cost nothing at ComfyUI's start, and touch it in one place."""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from architecture.source import Source, absolute_imports, functions, module_name, sources

from trainer_core.config.run import find_setting
from trainer_core.config.section import is_advanced

NODES = sources("nodes")
GATES = {
    "nodes/host/comfy_host.py",
    "nodes/host/comfy_model_management.py",  # of a run on a MODEL alone
    "nodes/host/served_files.py",  # the server's own library
}
ENGINE = {
    *("nodes/host/frozen_ops.py", "nodes/host/frozen_modules.py", "nodes/host/trainable_model.py"),
    *("nodes/host/unchanged_inputs.py", "nodes/host/checkpointed_forward.py"),
    "nodes/host/comfy_model_management.py",
}
"""What a run on a MODEL needs torch for at its head; nothing else imports it at load."""
HOST = {
    *("comfy", "comfy_execution", "comfy_extras", "execution", "folder_paths", "server", "nodes"),
    "aiohttp",  # of its server
}
HEAVY = {
    *("torch", "diffusers", "peft", "transformers", "accelerate"),
    *("numpy", "PIL", "safetensors", "yaml"),
}
EXECUTE_STATEMENTS = 13
SETTINGS_SHOWN = {
    *("training.batch_size", "preview.every", "training.checkpoint_every"),
    *("training.schedule.name", "training.schedule.warmup_steps", "training.optimizer.name"),
    "memory.plan",
}
SETTINGS_AT_MOST = 80
OBJECTS = {"clip", "vae", "model", "patcher", "model_patcher"}
INSIDE = {
    *("cond_stage_model", "first_stage_model", "diffusion_model", "patcher", "model_patcher"),
    *("add_patches", "get_key_patches", "load_device", "offload_device", "tokenize"),
    *("encode_from_tokens", "encode_from_tokens_scheduled", "model_config", "latent_format"),
}


def top(name: str) -> str:
    """The package that a module belongs to."""
    return name.split(".")[0]


def statements_at_load(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when a file is imported: not in functions, not for types only."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        waiting += ast.iter_child_nodes(node)


def imports_at_load(tree: ast.Module) -> Iterator[str]:
    """Top-level packages that are imported when a file is."""
    for node in statements_at_load(tree):
        if isinstance(node, ast.Import):
            yield from (top(alias.name) for alias in node.names)
        elif node.level == 0 and node.module:
            yield top(node.module)


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Statements of a function, with its docstring and those inside of others."""
    return sum(isinstance(each, ast.stmt) for each in ast.walk(function)) - 1


def executes(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file that ComfyUI calls to run a node."""
    return (each for each in functions(source) if each.name == "execute")


def test_one_file_touches_comfyui():
    touching = {
        source.path
        for source in NODES
        if HOST & {top(name) for name, _ in absolute_imports(source)}
    }
    assert touching == GATES


def test_the_api_of_nodes_is_for_definitions():
    """Services know neither ComfyUI's modules nor its classes of schemas."""
    using = {
        source.path.rpartition("/")[0]
        for source in NODES
        if "comfy_api" in {top(name) for name, _ in absolute_imports(source)}
    }
    assert using == {"nodes", "nodes/definitions"}


def comfyui_attributes(tree: ast.Module) -> list[str]:
    """Where ComfyUI's objects are looked into."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (node.attr in INSIDE or (isinstance(node.value, ast.Name) and node.value.id in OBJECTS))
    ]


def test_only_the_host_folder_looks_into_comfyuis_objects():
    found = {
        source.path: inside
        for source in NODES
        if not source.path.startswith("nodes/host/") and (inside := comfyui_attributes(source.tree))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text", ["model.model", "clip.tokenize('a')", "a.b.add_patches({})", "x.cond_stage_model"]
)
def test_a_look_into_comfyuis_objects_is_noticed(text):
    assert comfyui_attributes(ast.parse(text))
    hosts = [source for source in NODES if source.path.startswith("nodes/host/")]
    assert any(comfyui_attributes(source.tree) for source in hosts)


def test_arrows_of_the_nodes_point_to_the_host():
    """Definitions use services and host, services the host; never the other way."""
    upward = {
        "host": ("..services", "..definitions", "...services", "...definitions"),
        "services": ("..definitions",),
    }
    wrong = [
        f"{source.path}: {module}"
        for source in NODES
        for node in source.nodes
        if isinstance(node, ast.ImportFrom)
        and (module := "." * node.level + (node.module or "")).startswith(
            upward.get(source.path.split("/")[1], ("nowhere",))
        )
    ]
    assert wrong == []


def test_nothing_heavy_is_imported_at_load():
    heavy = {s.path: found for s in NODES if (found := HEAVY & set(imports_at_load(s.tree)))}
    assert {path: found for path, found in heavy.items() if path not in ENGINE} == {}
    assert all(found == {"torch"} for found in heavy.values())


def own_at_load(source: Source) -> Iterator[str]:
    """The pack's modules, as `module_name` has them, that a file could import when it is."""
    folder = PurePosixPath(source.path).parent.parts
    for node in statements_at_load(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            stem = [*folder[1 : len(folder) - node.level + 1], *(node.module or "").split(".")]
            for name in ("", *(alias.name for alias in node.names)):
                yield ".".join(part for part in (*stem, name) if part)


def imported_with_the_pack() -> list[Source]:
    """Each node, and the pack's own modules that are imported with one."""
    known = {module_name(source.path): source for source in NODES}
    waiting = [name for name in known if name.startswith(("__init__", "definitions."))]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in known and name not in reached:
            reached.add(name)
            waiting += own_at_load(known[name])
    return [known[name] for name in reached]


def test_what_needs_torch_at_its_head_is_not_imported_at_load():
    paths = {source.path for source in imported_with_the_pack()}
    assert {"nodes/__init__.py", "nodes/host/comfy_host.py"} <= paths
    assert paths & ENGINE == set()
    assert {source.path for source in NODES} > ENGINE


def test_the_core_that_nodes_import_at_load_needs_no_torch():
    core = {source.path: source for source in sources("trainer_core")}
    waiting = imported_with_the_pack()
    reached: dict[str, Source] = {}
    while waiting:
        source = waiting.pop()
        for path in core_at_load(source):
            if path in core and path not in reached:
                reached[path] = core[path]
                waiting.append(core[path])
    assert "trainer_core/families/base_names.py" in reached
    heavy = {
        path: (HEAVY - {"yaml"}) & set(imports_at_load(each.tree)) for path, each in reached.items()
    }
    assert {path: found for path, found in heavy.items() if found} == {}


def core_at_load(source: Source) -> Iterator[str]:
    """Files of `trainer_core` that a file imports when it is imported itself."""
    folder = PurePosixPath(source.path).parent.parts
    for node in statements_at_load(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            stem = (*folder[: len(folder) - node.level + 1], *(node.module or "").split("."))
            for name in ("", *(alias.name for alias in node.names)):
                place = "/".join(part for part in (*stem, name) if part)
                yield from (f"{place}.py", f"{place}/__init__.py")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch", {"torch"}),
        ("from torch import nn", {"torch"}),
        ("class A:\n    import torch.nn", {"torch"}),
        ("try:\n    import peft\nexcept ImportError:\n    pass", {"peft"}),
        ("def f():\n    import torch", set()),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import os", {"os"}),
        ("from . import torch", set()),
    ],
)
def test_imports_at_load_are_told_from_others(text, found):
    assert set(imports_at_load(ast.parse(text))) == found


def test_a_node_only_reads_its_inputs_calls_and_answers():
    counts = {
        f"{source.path}:{each.lineno}": statements(each)
        for source in NODES
        for each in executes(source)
    }
    assert len(counts) == 26
    assert {place: count for place, count in counts.items() if count > EXECUTE_STATEMENTS} == {}


def settings_of(path: str) -> Iterator[tuple[str, bool]]:
    """The settings that a node has inputs for, and whether it hides them at first."""
    (source,) = (each for each in NODES if each.path == path)
    for node in source.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "SettingInput":
            setting = ast.literal_eval(node.args[0])
            said = {each.arg: each.value for each in node.keywords}
            field = find_setting(setting)
            assert field
            hidden = (
                ast.literal_eval(said["advanced"]) if "advanced" in said else is_advanced(field)
            )
            yield setting, hidden


def exchanged(call: ast.Call, parameters: list[str]) -> list[str]:
    """Names that a call hands on in a row, and that the function has in another place."""
    given = [each.id if isinstance(each, ast.Name) else "" for each in call.args]
    pairs = zip(given, parameters, strict=False)
    return [name for name, own in pairs if name != own and name in parameters]


def test_inputs_are_handed_on_in_the_order_of_the_function():
    offered = {
        each.name: [own.arg for own in each.args.args]
        for source in NODES
        if source.path.startswith(("nodes/host/", "nodes/services/"))
        for each in source.tree.body
        if isinstance(each, ast.FunctionDef)
    }
    wrong = {
        f"{source.path}:{call.lineno}": names
        for source in NODES
        if source.path.startswith("nodes/definitions/")
        for call in source.nodes
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if (names := exchanged(call, offered.get(call.func.id, [])))
    }
    assert wrong == {}
    call = ast.parse("f(a, c, b)", mode="eval").body
    assert isinstance(call, ast.Call)
    assert exchanged(call, ["a", "b", "c"]) == ["c", "b"]


def test_training_settings_shows_what_people_change():
    """Eight of 69: a ninth takes the place of one of these, or is advanced.

    Beyond the limit the node wants to be two: unfolded, it is nearly two screens long.
    """
    hidden = dict(settings_of("nodes/definitions/training_settings.py"))
    assert {path for path, folded in hidden.items() if not folded} == SETTINGS_SHOWN
    assert len(SETTINGS_SHOWN) < len(hidden) <= SETTINGS_AT_MOST


def test_every_node_checks_what_it_is_given():
    """What ComfyUI is told of has passed `checked`, and all of it."""
    (start,) = (source for source in NODES if source.path == "nodes/__init__.py")
    assert "\nNODES = tuple(map(checked, _NODES))\n" in start.text
    assert "return list(NODES)" in start.text


def test_nodes_name_the_core_relatively():
    wrong = {
        source.path: name
        for source in (*NODES, *(s for s in sources() if s.path == "__init__.py"))
        for name, _ in absolute_imports(source)
        if top(name) in {"trainer_core", "nodes"}
    }
    assert wrong == {}


def test_the_pack_offers_no_old_mappings():
    """ComfyUI would not call `comfy_entrypoint` if there were any, even empty ones."""
    (entry,) = (source for source in sources() if source.path == "__init__.py")
    names = {node.id for node in entry.nodes if isinstance(node, ast.Name)}
    assert "NODE_CLASS_MAPPINGS" not in names
    assert "WEB_DIRECTORY" in names
    assert any(each.name == "comfy_entrypoint" for each in functions(entry))
    assert set(imports_at_load(entry.tree)) <= {"__future__", "typing"}
