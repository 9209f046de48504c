"""The page and the sheet: whole, safe with names and captions of anybody, of bounded size."""

import re
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from trainer_core.data.report.dataset_report import (
    BesideImage,
    DatasetReport,
    Finding,
    Placement,
    ReportedBucket,
    ReportedCaptions,
    ReportedFolder,
    ReportedImage,
    Schedule,
    Spread,
)
from trainer_core.data.report.html_page import report_page

HOSTILE = (
    "<script>alert(1)</script>.png",
    '"><img src=x onerror=alert(1)>.png',
    "' onload='alert(1).png",
    "a\nb.png",
    "\u202egnp.exe.png",
    "&lt;b&gt;.png",
    "</style></main>.png",
    "x" * 5000,
    "\ud800.png".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    "javascript:alert(1)",
    "\x1b[31mred\x1b[0m.png",
)


KNOWN_TAGS = """html head meta title style body main p h1 h2 h3 bdi dl div dt dd section i b ul li
    a span table thead tbody tr th td figure img figcaption br em small footer"""


def image(name: str, path: Path = Path("none.png"), caption: str = "", **given) -> ReportedImage:
    at = Placement(64, 64, (0.1, 0.0, 0.9, 1.0), 0.2, 0.5)
    return ReportedImage(name, path, "train", 0, 80, 64, (at,), (caption,), **given)


def report(images: tuple[ReportedImage, ...], findings: tuple[Finding, ...] = ()) -> DatasetReport:
    names = [each.name for each in images]
    words = tuple((name, 1) for name in names[:20])
    return DatasetReport(
        title=names[0] if names else "nothing",
        findings=findings,
        images=images,
        buckets=(ReportedBucket(64, 64, len(images), len(images), 2**31),),
        folders=tuple(ReportedFolder(n, "train", 1, 1, 1.0, n) for n in names[:3]),
        captions=ReportedCaptions(1, 1, 1, Spread(1, 2, 3), Spread(1, 2, 3), 77, words),
        schedule=Schedule(1, 1, 100, 10.0),
        resolution=64,
        counts={"images": len(images), "train": len(images)},
    )


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def test_hostile_names_and_captions_stay_text(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (80, 64), "teal").save(path)
    images = tuple(image(name, path, caption=name) for name in HOSTILE)
    findings = (
        Finding("duplicate", "warning", HOSTILE, HOSTILE, (HOSTILE[:3],)),
        Finding("cropped", "warning", HOSTILE, HOSTILE),
        Finding("left_out", "warning", details=HOSTILE),
    )
    page = report_page(report(images, findings))
    tags = Tags(page)
    assert tags.open == []
    assert {tag for tag, _ in tags.tags} <= set(KNOWN_TAGS.split())
    for tag, attributes in tags.tags:
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "img":
            assert (attributes["src"] or "").startswith("data:image/webp;base64,")
        assert (attributes.get("href") or "#").startswith("#")
    assert "<script>alert(1)</script>" in tags.text
    for hidden in ("\u202e", "\x1b"):
        assert hidden not in page
    assert "\\u202e" in tags.text
    assert "x" * 1000 not in page
    policies = [each.get("content") or "" for tag, each in tags.tags if tag == "meta"]
    assert any(policy.startswith("default-src 'none'") for policy in policies)
    assert not re.search(r"https?://", page)


def test_crop_and_mask_are_shown(tmp_path):
    path, mask = tmp_path / "a.png", tmp_path / "m.png"
    Image.new("RGB", (80, 64), "teal").save(path)
    Image.linear_gradient("L").resize((80, 64)).save(mask)
    with_mask = image("a.png", path, mask=BesideImage(mask, 80, 64))
    page = report_page(report((with_mask,)))
    assert "left:10.0%;top:0.0%;width:80.00%;height:100.00%" in page
    assert page.count("<img") == 2
    assert report_page(report((image("a.png", path),))).count("<img") == 1
