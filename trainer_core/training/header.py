"""What the headers of a run's adapter files tell of it."""

from __future__ import annotations

from collections.abc import Mapping

from ..adapter_files.header.metadata import RunFacts
from ..adapter_files.header.workflow import header_problems
from ..config import RunConfig
from .observer import Observer, Warned
from .prepare import Prepared
from .versions import installed_versions


def header_facts(
    config: RunConfig,
    data: Prepared,
    precision: str,
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
    observer: Observer,
) -> RunFacts:
    """Gather the facts of a run that do not change with its steps.

    Args:
        config: The run file.
        data: Base and dataset.
        precision: The number format that is computed in.
        hashes: Identities of base and dataset.
        workflow: What of the host started the run.
        observer: Told of a workflow that does not fit into a header which is to have it.

    Returns:
        The facts, of step 0 and without a date.
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
