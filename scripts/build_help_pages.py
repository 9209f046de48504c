"""Makes the list of inputs of each node's help page, ``js/docs/<node id>.md``.

A list, because ComfyUI shows the pages in a narrow panel. It is made from what the node itself
says, which comes from the run file's settings; the rest of a page is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.workflow_graphs.schemas import GROWING, Input, inputs_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = Path("js", "docs")
PREFIX = "AdapterTrainer"
_MANY = 1_000_000
_SECTION = re.compile(r"(?<=^## Inputs\n).*?(?=^## )", re.MULTILINE | re.DOTALL)
_OF_THIS_MACHINE = {
    "AdapterTrainerDatasetFolder.regularization_folder": "`none`, or a folder as for *folder*",
    "AdapterTrainerDatasetFolder.folder": "a folder",
    "AdapterTrainerAdapter.start_from": "a file",
    "AdapterTrainerBase.source": "a file or folder",
    "AdapterTrainerBase.training_adapter": "`none`, or a file",
    "AdapterTrainerProposeCaptions.folder": "a folder",
    "AdapterTrainerQuick.base": "`embedded`, a file or a folder",
    "AdapterTrainerQuick.folder": "a folder",
    "AdapterTrainerQuick.training_adapter": "`none`, or a file",
    "AdapterTrainerPreviewPrompts.controls_from": "`none`, or a folder",
    "AdapterTrainerConvert.file": "a file",
    "AdapterTrainerCheck.file": "a file",
    "AdapterTrainerLoadRun.run": "a run",
    "AdapterTrainerTrain.resume_from": "a checkpoint",
}


def with_inputs(page: str, node: str, schema: Mapping[str, Any]) -> str:
    """A page with its list of inputs made again.

    Args:
        page: The page's text.
        node: The node's id.
        schema: Its entry of ``/object_info``.

    Raises:
        ValueError: When the page has no section "Inputs" with another one behind it.
    """
    listed = "\n".join(_rows(node, schema)) or "None."
    made, count = _SECTION.subn(lambda _: f"\n{listed}\n\n", page)
    if count != 1:
        raise ValueError(f"{node}: the page has {count} sections 'Inputs'")
    return made


def _rows(node: str, schema: Mapping[str, Any]) -> Iterator[str]:
    whole = {each.name: each for each in inputs_of(schema, {})}
    for each in whole.values():
        if "." in each.name:
            continue
        yield _row(node, each.name, each, "")
        if each.type == "COMFY_DYNAMICCOMBO_V3":
            for key in each.choices:
                for inner in inputs_of(schema, {each.name: key}):
                    if inner.name.startswith(f"{each.name}."):
                        name = inner.name.partition(".")[2]
                        yield _row(node, name, inner, f"only {key}")


def _row(node: str, name: str, each: Input, note: str) -> str:
    where = _OF_THIS_MACHINE.get(f"{node}.{name}")
    notes = [note] if note else []
    if each.options.get("advanced"):
        notes.append("advanced")
    if not each.is_widget and not each.required:
        notes.append("optional")
    takes = where or (_takes(each) if each.is_widget else f"link: {_linked(each)}")
    unknown = not each.is_widget or (where and "default" not in each.options)
    default = "" if unknown else _shown(each.default)
    facts = "; ".join([*notes, takes, *([f"default {default}"] if default else [])])
    return f"- **{name}** ({facts}): {each.options.get('tooltip', '')}"


def _linked(each: Input) -> str:
    if each.type != GROWING:
        return each.type
    template = each.options["template"]
    ((kind, _),) = template["input"]["required"].values()
    return f"{kind}, {template['min']} to {template['max']} of them"


def _takes(each: Input) -> str:
    if each.choices:
        return ", ".join(f"`{choice}`" for choice in each.choices)
    if each.type in {"INT", "FLOAT"}:
        kind = "whole number" if each.type == "INT" else "number"
        low, high = each.options.get("min"), each.options.get("max")
        if high is None or high >= _MANY:
            return kind if low is None else f"{kind} from {low:g}"
        return f"{kind}, {low:g} to {high:g}"
    return {"BOOLEAN": "on or off", "STRING": "text"}[each.type]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in ("", None):
        return ""
    if isinstance(value, float):
        return f"`{value:g}`"
    # A line of its own would end the item.
    return ", ".join(f"`{line}`" for line in str(value).splitlines())


def built(schemas: Mapping[str, Any]) -> dict[Path, str]:
    """All pages with their lists made again, by path from the root of the repository.

    Args:
        schemas: ``/object_info`` of a ComfyUI with the pack.
    """
    pages = {node: PAGES / f"{node}.md" for node in schemas if node.startswith(PREFIX)}
    return {
        path: with_inputs((ROOT / path).read_text(encoding="utf-8"), node, schemas[node])
        for node, path in sorted(pages.items())
    }
