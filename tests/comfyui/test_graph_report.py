"""Dataset Report: text, contact sheet and page of a dataset."""

import re
import urllib.request
from urllib.parse import quote

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
    shown = server.run(reported("reported"))["outputs"][REPORT]
    (told,) = shown["text"]
    assert "1 image is there more than once" in told
    assert "1 image has round brackets in its caption, which are trained as letters" in told
    (page,) = (server.data / "output").glob("**/reports/reported.html")
    text = page.read_text(encoding="utf-8")
    assert "z.png" in text
    assert "<script" not in text
    assert list((server.data / "output").glob("**/sheet*.png"))
    # ComfyUI's /view makes a download of every HTML file, so the text names a route of ours.
    (link,) = re.findall(r"/adapter_trainer/report\S+", told)
    assert shown["adapter_trainer_page"] == [link]
    with urllib.request.urlopen(server.address + link, timeout=60) as answer:
        assert answer.read() == page.read_bytes()
    headers = answer.headers
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"] is None
    # This server runs with --disable-api-nodes, which writes a looser policy over each answer's.
    (policy,) = headers.get_all("Content-Security-Policy")
    policy = {part.strip() for part in policy.split(";")}
    assert {"sandbox", "default-src 'none'", "base-uri 'none'", "form-action 'none'"} <= policy
    assert not any(part.startswith("script-src") for part in policy)


def test_only_pages_of_the_reports_folder_are_sent(server):
    folder = server.data / "output" / "adapter_trainer" / "reports"
    for path in (folder / "page.html", folder.parent / "above.html", folder / "deep" / "x.html"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<p>kept</p>", encoding="utf-8")
    (folder / "notes.txt").write_text("notes", encoding="utf-8")
    (folder / "folder.html").mkdir()
    (folder / "linked.html").symlink_to(folder.parent / "above.html")
    with (folder / "huge.html").open("wb") as file:
        file.truncate(2**26 + 1)
    route = "/adapter_trainer/report"
    assert server.fetch(f"{route}?name=page") == b"<p>kept</p>"
    refused = ("", ".", "..", "../above", "..\\above", str(folder.parent / "above"), "deep/x")
    others = ("notes.txt", "notes", "folder", "linked", "huge", "page\0", "page.html", "nowhere")
    for name in refused + others:
        assert server.status(f"{route}?name={quote(name, safe='')}") == 404, name
    assert server.status(route) == 404
