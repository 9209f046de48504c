"""What a run is told by: identities of base and dataset, versions, and its files' headers."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping

from ..adapter_files.header import RunFacts, header_problems
from ..config import RunConfig
from ..weights.base_location import file_identity, folder_identity
from ..weights.loading import file_settings
from .observer import Observer, Warned
from .prepare import Prepared

PACKAGES = ("torch", "diffusers", "peft", "accelerate", "transformers", "safetensors", "numpy")


def content_hashes(data: Prepared) -> dict[str, str]:
    """Name the content of a run's ``base`` and ``dataset``."""
    # The location's identity names the encoders alone, because cached samples depend on no more.
    location = data.location
    settings = [location.identity]
    if location.file is not None:
        # The folder then holds no weights, and the file itself may say how they are used.
        found = file_settings(location, data.family.file)
        settings += [file_identity(location.file), json.dumps(found, sort_keys=True)]
    base = folder_identity(location.folder, ["transformer"], settings)
    return {"base": base, "dataset": data.dataset.identity}


def installed_versions() -> dict[str, str]:
    """List the versions of Python and of the libraries that decide a run's numbers."""
    from ..version import __version__

    found = {"adapter_trainer": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_header(
    config: RunConfig,
    data: Prepared,
    precision: str,
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
    observer: Observer,
) -> RunFacts:
    """Gather what the headers tell that does not change with its steps.

    Args:
        config: The run file.
        data: Base and dataset.
        precision: The number format that is computed in.
        hashes: Identities of base and dataset.
        workflow: What of the host started the run.
        observer: Told of a workflow that does not fit into a header which is to have it.

    Returns:
        The header, of step 0 and without a date.
    """
    if config.output.metadata == "full":
        for problem in header_problems(workflow):
            observer.notify(Warned(problem))
    names = data.family.header_names.get(data.location.variant)
    return RunFacts(
        family=config.family,
        step=0,
        settings=config.model_dump(mode="json"),
        title=data.family.title,
        architecture=names.architecture if names else None,
        base_version=names.version if names else None,
        precision=precision,
        hashes=hashes,
        versions=installed_versions(),
        samples=len(data.dataset),
        workflow=workflow,
    )
