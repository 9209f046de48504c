"""What no file does: print, run code from data, change foreign modules, name a machine's paths."""

import ast
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from architecture.source import ROOT, Source, absolute_imports, sources

MAY_PRINT = {"trainer_core/commands/console.py"}
_CODE_FROM_DATA = {"pickle", "cPickle", "dill", "marshal", "shelve"}
_RUNS_DATA = ("eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "yaml.full_load")
_SHIPPED = (*sources("trainer_core"), *sources("nodes"))
_PRODUCT = (*_SHIPPED, *sources("scripts"))
_MAKES_NAMES = {
    "trainer_core/filesystem/temporary.py",
    # A workflow's name, to an identity that is always the same.
    "scripts/workflow_graphs/graph.py",
}
_NAME_MAKERS = {"uuid", "tempfile", "secrets"}
_TEMPORARY_NAME = re.compile(r"^\.[a-z]+-$|\.(?:part|tmp|temp|partial|bak)$")
# SECRET stands for a user in the tests of what is not told.
_MACHINE_PATH = re.compile(r"/(?:home|Users|root|work|opt|mnt)/(?!SECRET\b)[A-Za-z0-9]")
_REGISTRY = re.compile(r"index-url[ =]+http", re.IGNORECASE)
_TEXT_SUFFIXES = {".md", ".py", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ""}
_SKIPPED_FOLDERS = {
    ".git",
    ".venv",
    ".hypothesis",
    "build",
    "dist",
    "node_modules",
    "demo_output",
    "output",
}


@cache
def calls(source: Source) -> tuple[tuple[str, int], ...]:
    """Dotted names of everything that a file calls, with lines; with dots alone beside a name."""
    found = (node for node in source.nodes if isinstance(node, ast.Call))
    return tuple((dotted(node.func), node.lineno) for node in found)


def dotted(node: ast.AST) -> str:
    """The name of a function that is called; of what is not a name its text, which takes longer."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    first = node.id if isinstance(node, ast.Name) else ast.unparse(node)
    return ".".join([first, *reversed(parts)])


def foreign_changes(tree: ast.Module) -> list[str]:
    """Assignments to attributes of something that the file imported."""
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    changed = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "delattr"}:
            targets = [ast.Attribute(node.args[0], "", ast.Store())]
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if root is not target and isinstance(root, ast.Name) and root.id in imported:
                changed.append(ast.unparse(node))
    return changed


def called(names: Iterable[str], found_in: Iterable[Source]) -> list[str]:
    """Files and lines that call one of the names."""
    wanted = set(names)
    return [
        f"{source.path}:{line} {name}"
        for source in found_in
        # Most files have not even the words, and need not be parsed.
        if any(name in source.text for name in wanted)
        for name, line in calls(source)
        if name in wanted
    ]


def test_only_the_console_prints():
    quiet = [source for source in sources("trainer_core") if source.path not in MAY_PRINT]
    assert called(["print"], quiet) == []


def safetensors_imports(source: Source) -> list[str]:
    """What a file takes of the library of safetensors, besides the error that others raise."""
    return [
        f"{source.path} {alias.name}"
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] == "safetensors"
        and alias.name != "SafetensorError"
    ]


def test_safetensors_are_read_and_written_in_one_place():
    assert [found for source in _SHIPPED for found in safetensors_imports(source)] == []


def temporary_names(source: Source) -> list[str]:
    """Where a file makes a name of its own for what is not finished."""
    found = [
        f"{source.path}:{line} import {name}"
        for name, line in absolute_imports(source)
        if name in _NAME_MAKERS
    ]
    for node in source.nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _TEMPORARY_NAME.search(text):
            found.append(f"{source.path}:{node.lineno} {text!r}")
    return found


def test_one_place_knows_the_names_of_what_is_not_finished():
    """Others would leave behind what no command recognises."""
    others = [source for source in _PRODUCT if source.path not in _MAKES_NAMES]
    assert [name for source in others for name in temporary_names(source)] == []


def test_the_places_that_make_names_are_found():
    for path in _MAKES_NAMES:
        assert any(temporary_names(source) for source in _PRODUCT if source.path == path), path


def test_files_are_renamed_and_removed_where_somebody_waits_for_windows():
    own = {f"trainer_core/filesystem/{name}.py" for name in ("storage", "temporary")}
    shipped = [source for source in _SHIPPED if source.path not in own]
    assert [place for source in shipped for place in _hasty(source)] == []
    for text, count in (("path.unlink()", 1), ("a.rename(b)", 1), ("unlink(path)", 0)):
        assert len([*_hasty(Source("x.py", text))]) == count
    assert not [*_hasty(Source("x.py", "with contextlib.suppress(OSError):\n    path.unlink()"))]


def _hasty(source: Source) -> Iterator[str]:
    """Calls of a path's own methods, where a refusal is not passed over."""
    passed = {
        id(inner)
        for node in source.nodes
        if isinstance(node, ast.With) and "suppress" in ast.unparse(node.items[0])
        for inner in ast.walk(node)
    }
    for node in source.nodes:
        called = getattr(getattr(node, "func", None), "attr", "")
        if called in {"unlink", "rename"} and id(node) not in passed:
            yield f"{source.path}:{getattr(node, 'lineno', 0)}"


def test_no_data_becomes_code():
    assert called(_RUNS_DATA, _SHIPPED) == []
    imported = {name.split(".")[0] for s in _SHIPPED for name, _ in absolute_imports(s)}
    assert not imported & _CODE_FROM_DATA


MAY_READ_TEXT = {
    "trainer_core/filesystem/text_files.py": "the bounded reader itself",
    "trainer_core/requirements.py": "the pack's own pyproject.toml",
    "trainer_core/offload/host_weights.py": "the system's list of this process's own memory",
}
MAY_READ_BYTES = {
    "trainer_core/device.py": "the system's list of vendors",
    "trainer_core/data/image_decoders.py": "an image, after its header was seen",
    "nodes/services/load_run.py": "a workflow, after its size was seen",
    "nodes/services/datasets/report_page.py": "a page of ours, after its size was seen",
}


def unbounded_reads(source: Source) -> list[str]:
    """Calls that take a text whole, or parse JSON, whatever its size and depth."""
    names = ("json.load", "json.loads", "yaml.safe_load", "yaml.safe_load_all")
    methods = (".read_text", ".read_bytes", "request.json")
    return [
        f"{source.path}:{line} {name}"
        for name, line in calls(source)
        if name in names or name.endswith(methods)
    ]


def test_texts_and_json_are_read_in_one_place():
    found = [
        call
        for source in _SHIPPED
        if source.path not in MAY_READ_TEXT
        for call in unbounded_reads(source)
        if not (source.path in MAY_READ_BYTES and call.endswith("read_bytes"))
    ]
    assert found == []


def calls_without(source: Source, functions: Iterable[str], argument: str) -> list[str]:
    """Calls of functions that do not hand on an argument, by its name or at its place."""
    return [
        f"{source.path}:{node.lineno} {ast.unparse(node.func)}"
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in functions
        and argument not in {each.arg for each in node.keywords}
        and argument not in {ast.unparse(each) for each in node.args}
    ]


def test_what_a_graph_makes_the_trainer_read_is_kept_within():
    """The command line follows links; wherever a graph may stand behind, `within` is handed on."""
    readers = {
        "trainer_core/training/": {"scan", "scan_all", "prepare", "_train"},
        "trainer_core/data/": {"scan", "survey", "list_folder", "_controls_in_folder"},
        "nodes/": {"scan", "survey", "scan_all", "prepare", "train"},
    }
    missing = [
        call
        for folder, functions in readers.items()
        for source in _SHIPPED
        if source.path.startswith(folder)
        for call in calls_without(source, functions, "within")
    ]
    assert missing == []


def test_import_path_is_left_alone():
    changes = [f"sys.path.{name}" for name in ("append", "insert", "extend", "remove")]
    assert called(changes, sources()) == []


def test_foreign_modules_are_left_alone():
    changes = {source.path: found for source in _PRODUCT if (found := foreign_changes(source.tree))}
    # ComfyUI's counter of pinned bytes: its own modules change it in the same way.
    counter = "setattr(management, _PINNED, getattr(management, _PINNED) + change)"
    assert changes.pop("nodes/host/comfy_host.py") == [counter]
    # What ComfyUI's own trainer sets too, kernels that autograd can follow, and torch's attention
    # in the place of one that a pack has put there for everybody: for a run's time.
    engine = changes.pop("nodes/host/comfy_model_management.py")
    assert {each.partition(" = ")[0] for each in engine} == {
        "management.in_training",
        "comfy.quant_ops.ck",
        "comfy.ops.run_every_op",
        "torch.nn.functional.scaled_dot_product_attention",
        "del management.current_loaded_models[place]",
    }
    assert changes == {}


NOTICED = {
    safetensors_imports: [
        "import safetensors",
        "import safetensors.torch",
        "from safetensors import safe_open",
    ],
    temporary_names: [
        "path = root / f'.writing-{number}'",
        "path = root / ('.new-' + name)",
        "path = path.with_suffix('.part')",
        "import tempfile",
        "from uuid import uuid4",
    ],
    unbounded_reads: ["json.loads(x)", "json.load(file)", "(a / b).read_text(encoding='utf-8')"],
    lambda source: calls_without(source, {"scan"}, "within"): [
        "scan(a)\nscan(a, within)\nscan(a, within=None)"
    ],
    lambda source: foreign_changes(source.tree): [
        "import torch\ntorch.load = 1",
        "from torch import nn\nnn.Linear.forward = None",
        "import sys\nsys.path[0] = 'x'",
        "import peft\nsetattr(peft, 'x', 1)",
    ],
}


def test_each_check_notices_what_it_is_for():
    for check, texts in NOTICED.items():
        for text in texts:
            assert len(check(Source("x.py", text))) == 1, text
    assert safetensors_imports(Source("x.py", "from safetensors import SafetensorError")) == []


def texts() -> Iterator[Path]:
    """Text files of the project, besides what is built or installed in its folder."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [
            name
            for name in names
            if name not in _SKIPPED_FOLDERS and not name.endswith((".egg-info", "_cache"))
        ]
        for path in map(Path(folder).joinpath, files):
            if path.suffix in _TEXT_SUFFIXES and path.is_file():
                yield path


def test_texts_name_no_machine_path_and_no_registry():
    found, read = [], 0
    for path in texts():
        relative = path.relative_to(ROOT).as_posix()
        if relative == "tests/architecture/test_conduct.py":
            continue
        read += 1
        text = path.read_text(encoding="utf-8", errors="replace")
        for pattern in (_MACHINE_PATH, _REGISTRY):
            found += [f"{relative}: {each.group()}" for each in pattern.finditer(text)]
    assert found == []
    assert read > 50
