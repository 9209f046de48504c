"""Dataset Report: text, contact sheet and page of a dataset."""

import json

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import DATASET, graph

pytestmark = pytest.mark.comfy

REPORT, SAVED = "30", "31"


def reported(folder):
    """A graph of a dataset, its report, and the contact sheet saved."""
    own = {**graph("report")[DATASET]["inputs"], "folder": f"datasets/{folder}"}
    dataset = {"class_type": "AdapterTrainerDatasetFolder", "inputs": own}
    sheet = {"images": [REPORT, 1], "filename_prefix": "sheet"}
    return {
        DATASET: dataset,
        REPORT: {"class_type": "AdapterTrainerDatasetReport", "inputs": {"dataset": [DATASET, 0]}},
        SAVED: {"class_type": "SaveImage", "inputs": sheet},
    }


def test_a_dataset_is_reported_with_sheet_and_page(server):
    folder = server.data / "datasets" / "reported"
    write_images(folder, captions=["ohwx one", "ohwx two", "ohwx three"], first=900)
    (folder / "z.txt").write_text('ohwx "<script>alert(1)</script>"', encoding="utf-8")
    (folder / "z.png").write_bytes((folder / "0.png").read_bytes())
    told = json.dumps(server.run(reported("reported")))
    assert "1 image is there more than once" in told
    (page,) = (server.data / "output").glob("**/reports/reported.html")
    text = page.read_text(encoding="utf-8")
    assert "z.png" in text
    assert "<script" not in text
    assert list((server.data / "output").glob("**/sheet*.png"))
