"""The dataset report of a graph: text, contact sheet and page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ....trainer_core.errors import InputError
from ....trainer_core.filesystem.file_names import name_mistake
from ....trainer_core.filesystem.storage import write_text
from ...host import comfy_host
from ...host.served_files import html_page
from ..graph_run import family_of
from ..graph_words import in_graph_words
from ..merged_run_config import run_config
from ..socket_values import BaseChoice, DatasetChoice

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ....trainer_core.config import RunConfig
    from ....trainer_core.data.captions.length import TextLimit
    from ....trainer_core.data.report.dataset_report import DatasetReport

FOLDER = "reports"
"""Below the trainer's output folder."""

ROUTE = "/adapter_trainer/report"
"""Where the browser asks for a page."""

# A page holds at most a few hundred small images.
_LARGEST = 64 * 2**20

_SHEET_IMAGES = 96
_TOLD_EVERY = 20


def dataset_page(
    node_id: str, dataset: DatasetChoice, base: BaseChoice | None
) -> tuple[str, torch.Tensor, dict[str, Any]]:
    """Look at a dataset, and write its page; the node shows progress.

    The base decides sizes and counts tokens; without one the family of the defaults does.

    Returns:
        The report in words; its contact sheet `[N, H, W, 3]` in [0, 1]; what the node shows.

    Raises:
        InputError: When the dataset cannot be read at all.
    """
    from ....trainer_core.data.report.caption_findings import bracket_findings
    from ....trainer_core.data.report.html_page import html_text, report_page
    from ....trainer_core.data.report.image_findings import find_in_images
    from ....trainer_core.data.report.make_report import in_order
    from ....trainer_core.data.report.report_text import report_text
    from ....trainer_core.families.dataset_reading import read_dataset

    config, family = _config(dataset, base), None if base is None else family_of(base)

    def count(has_controls: bool) -> TextLimit | None:
        # How much of a caption a CLIP of the graph reads is its own matter.
        known = base is not None and family is None
        return _limit(config, has_controls) if known else None

    reading = read_dataset(config, count, comfy_host.allowed_folders(), family)
    report = reading.report
    if base is None or not base.embedded:
        brackets = bracket_findings(reading.found.samples, config.dataset)
        report = replace(report, findings=in_order((*report.findings, *brackets)))
    bar = comfy_host.ProgressBar(node_id, max(1, len(report.images)))

    def progress(done: int, total: int) -> None:
        if (done % _TOLD_EVERY == 0 or done == total) and bar.show(done):
            comfy_host.raise_interrupted()

    report = find_in_images(report, config.dataset, comfy_host.cache_folder(), progress)
    # The same dataset writes over its page.
    name = "dataset" if name_mistake(report.title, new=True) else report.title
    path = _folder() / f"{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    remedies = dict.fromkeys(finding.remedy for finding in report.findings)
    titles = {each.made_by or "" for each in (dataset, *dataset.parts)}
    sentences = {each: in_graph_words(each, titles=titles) for each in remedies}
    page, text = report_page(report), report_text(report)
    for plain, words in sentences.items():
        page, text = page.replace(html_text(plain), html_text(words)), text.replace(plain, words)
    write_text(path, page)
    place, link = comfy_host.output_place(path), f"{ROUTE}?{urlencode({'name': name})}"
    sentence = (
        f"{text}\nPage: {link} behind ComfyUI's address in the browser. "
        f"The file: {place['subfolder']}/{place['filename']} in ComfyUI's output folder."
    )
    return sentence, _sheet(report), {"text": (sentence,), "adapter_trainer_page": [link]}


def kept_page(name: str) -> tuple[Any, int]:
    """What the browser is told when it asks for a dataset's page, and the HTTP status.

    The page with 200, or JSON values with a ``reason`` and 404. ComfyUI's own ``/view`` sends every
    HTML file as a download. The name may come from anybody.
    """
    if name_mistake(name):
        return {"reason": "this is not a name of a report"}, 404
    path = _folder() / f"{name}.html"
    try:
        # A link would lead to whatever it points at.
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
            return {"reason": "no report of this name; run Dataset Report"}, 404
        return html_page(path.read_bytes()), 200
    except OSError as error:
        return {"reason": f"the report cannot be read ({error.strerror or error})"}, 404


def _folder() -> Path:
    return comfy_host.output_folder() / FOLDER


def _config(dataset: DatasetChoice, base: BaseChoice | None) -> RunConfig:
    from ....trainer_core.families.run_files import load_config

    values = {"dataset": dict(dataset.values)}
    return load_config(values) if base is None else run_config(base, values)


def _limit(config: RunConfig, has_controls: bool) -> TextLimit | None:
    """How captions are counted; None where the base's tokenizer is not at hand."""
    from ....trainer_core.bases.locate import locate_base
    from ....trainer_core.data.captions.length import TextLimit
    from ....trainer_core.families.registry import get_family

    family = get_family(config.family)
    try:
        location = locate_base(config.base, family, has_controls)
        return TextLimit(family.text.load_token_counter(location), location.text_length)
    except InputError:
        return None


def _sheet(report: DatasetReport) -> torch.Tensor:
    import numpy as np
    import torch

    from ....trainer_core.data.report.contact_sheet import sheet_pages

    pages = [np.asarray(page) for page in sheet_pages(report, _SHEET_IMAGES)]
    return torch.from_numpy(np.stack(pages)).float() / 255.0
