"""What of a file's header stays true of the file that it is converted to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from ...filesystem.text_files import parse_json
from .metadata import SETTINGS_KEY
from .workflow import WORKFLOW_KEYS, header_workflow, workflow_summary

_OF_FILE = frozenset(
    {
        "format",
        "lora_adapter_metadata",
        "modelspec.hash_sha256",
        "sshs_model_hash",
        "sshs_legacy_hash",
    }
)
"""What the layout writes by itself, and hashes of the old file's tensors."""

_OF_FORM = frozenset({"ss_network_module", "ss_network_dim", "ss_network_alpha", "ss_network_args"})


def kept_header(
    metadata: Mapping[str, str], given: str, written: str, *, reformed: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Take over a header without what would be wrong of the new file.

    Args:
        metadata: Of the file that was read, which may come from anybody.
        given: The kind of adapter in it.
        written: The kind of adapter in the new file.
        reformed: Whether layers have other ranks or another form in the new file.

    Returns:
        The new file's strings, and a note for each workflow that is left out.
    """
    header = {key: text for key, text in metadata.items() if key not in _OF_FILE}
    notes = _without_large_workflows(header)
    if given == written and not reformed:
        return header, notes
    header = {key: text for key, text in header.items() if key not in _OF_FORM}
    with contextlib.suppress(ValueError):
        own = parse_json(header.get(SETTINGS_KEY, ""))
        if isinstance(own, dict):
            own["kind"] = written
            settings = own.get("settings")
            if isinstance(settings, dict):
                settings.pop("adapter", None)
            header[SETTINGS_KEY] = json.dumps(own, sort_keys=True)
    return header, notes


def _without_large_workflows(header: dict[str, str]) -> tuple[str, ...]:
    """Take out, in place, what ComfyUI's page could not read back."""
    given = {key: header[key] for key in WORKFLOW_KEYS if key in header}
    reasons = {
        key: problem
        for key, text in given.items()
        if (problem := workflow_summary(text).get("problem"))
    }
    sound = {key: text for key, text in given.items() if key not in reasons}
    fitting = header_workflow(sound)
    reasons |= {key: "too large for a header" for key in sound if key not in fitting}
    for key in reasons:
        del header[key]
    return tuple(f"The header's {key} was left out: {why}" for key, why in reasons.items())
