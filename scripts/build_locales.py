"""Makes ComfyUI's locale files, ``locales/<language>``, from the English texts where they stand.

A translation memory, ``scripts/locales/<language>.json``, has the translation of each English text
by the text itself. So a text that changes is shown in English until it is translated again.
English needs no file: ComfyUI shows what a node says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.workflow_graphs.schemas import Schemas

ROOT = Path(__file__).resolve().parents[1]
MEMORIES = Path("scripts", "locales")
LOCALES = Path("locales")
LANGUAGES = ("de", "es", "fr", "ja", "ko", "ru", "zh")
_PREFIX = "AdapterTrainer"
_TITLE = "Runs"
"""ComfyUI looks up the title of a sidebar's tab as a key of its own."""
_TEXT = re.compile(r'\bt\(\s*("(?:[^"\\]|\\.)*")')


def built(schemas: Schemas) -> dict[Path, str]:
    """The files and their text, by path from the root of the repository.

    Args:
        schemas: ``/object_info`` of a ComfyUI with the pack.
    """
    files: dict[Path, str] = {}
    for language in LANGUAGES:
        known = memory(language)
        nodes = {
            node: translated(texts_of(schema), known)
            for node, schema in sorted(schemas.items())
            if node.startswith(_PREFIX)
        }
        tab = {text: known[text] for text in tab_texts() if text in known}
        main = {"adapterTrainer": tab, _TITLE: tab.get(_TITLE, _TITLE)}
        for name, content in (("nodeDefs", nodes), ("main", main)):
            text = json.dumps(content, ensure_ascii=False, indent=2)
            files[LOCALES / language / f"{name}.json"] = f"{text}\n"
    return files


def memory(language: str) -> dict[str, str]:
    """Translations by English text."""
    return json.loads((ROOT / MEMORIES / f"{language}.json").read_text(encoding="utf-8"))


def texts_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A node's texts in the shape of ``nodeDefs.json``.

    Inputs and outputs keep their names, because errors, run files and docs have them. Advanced
    inputs stay English, and those of a choice, of which Nodes 2.0 shows the node's own text.
    """
    inputs = {
        name: {"tooltip": spec[1]["tooltip"]}
        for group in ("required", "optional")
        for name, spec in schema["input"].get(group, {}).items()
        if spec[1].get("tooltip") and not spec[1].get("advanced")
    }
    outputs = {
        str(at): {"tooltip": tooltip}
        for at, tooltip in enumerate(schema["output_tooltips"])
        if tooltip
    }
    own = {key: schema[key] for key in ("display_name", "description")}
    return own | {"inputs": inputs, "outputs": outputs}


def tab_texts() -> list[str]:
    """The English texts of the runs tab: every literal that its function ``t`` gets."""
    sources = sorted((ROOT / "js" / "runs").glob("*.js"))
    found = (_TEXT.findall(path.read_text(encoding="utf-8")) for path in sources)
    return sorted({json.loads(each) for file in found for each in file})


def translated(texts: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Texts in another language, in the same shape, without those that have no translation."""
    found = {
        key: translated(each, known) if isinstance(each, Mapping) else known.get(each)
        for key, each in texts.items()
    }
    return {key: each for key, each in found.items() if each}


def english(schemas: Schemas) -> set[str]:
    """All texts that are to be translated."""
    nodes = (schema for node, schema in schemas.items() if node.startswith(_PREFIX))
    return {text for schema in nodes for text in _leaves(texts_of(schema))} | set(tab_texts())


def _leaves(texts: Mapping[str, Any]) -> Iterator[str]:
    for each in texts.values():
        yield from _leaves(each) if isinstance(each, Mapping) else (each,)
