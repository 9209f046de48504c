"""Whether what a command names is there, asked before torch is imported: an answer in a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..config import RunConfig
from ..config.base_path import base_file, local_folder, names_hub
from ..data.sources.list_files import dataset_root
from ..errors import TrainerError
from ..weights.base_location import EMBEDDED


def require_inputs(config: RunConfig, *, dataset: bool = True) -> None:
    """Refuse a run file whose dataset or base is not there.

    Raises:
        TrainerError: About the first that is missing, as the run itself would say it.
    """
    for problem in missing_inputs(config, dataset=dataset):
        raise problem


def missing_inputs(config: RunConfig, *, dataset: bool = True) -> Iterator[TrainerError]:
    """What `require_inputs` refuses, all of it."""
    base = config.base
    checks: list[Callable[[], object]] = []
    if dataset and config.dataset.path and config.cache.manifest is None:
        checks.append(lambda: dataset_root(config.dataset.path))
    if base.path != EMBEDDED and not names_hub(base.path):
        checks.append(lambda: base_file(base.path) or local_folder(base.path, "base.path"))
    if base.encoders:
        checks.append(lambda: local_folder(base.encoders or "", "base.encoders"))
    for check in checks:
        try:
            check()
        except TrainerError as error:
            yield error
