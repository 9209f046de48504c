"""The page of a run: what it says, and what strangers' names become."""

import json
import re

import pytest
from PIL import Image

from trainer_core.cli import main
from trainer_core.training.run_page import run_page

NUMBERS = ("epoch", "grad_norm", "sigma_mean", "step_seconds", "time")
HOSTILE = '<script>alert("x")</script>\u202e'


@pytest.fixture
def version(tmp_path):
    folder = tmp_path / "an adapter" / "v0"
    (folder / "samples" / "000000").mkdir(parents=True)
    (folder / "samples" / "000040").mkdir()
    record = {"status": "done", "step": 40, "steps": 40, "versions": {"torch": HOSTILE}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "run.yaml").write_text(f"seed: 1\n# {HOSTILE}\n", encoding="utf-8")
    lines = []
    for step in range(1, 41):
        line = dict.fromkeys(NUMBERS, 1.5) | {"step": step, "loss": 1 / step}
        held_out = {} if step % 10 else {"validation_loss": abs(step - 20)}
        lines.append(json.dumps({**line, **held_out, "learning_rate": 1e-4}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Image.new("RGB", (400, 300), "red").save(folder / "samples" / "000000" / "0.png")
    (folder / "samples" / "000040" / "0.png").write_bytes(b"no image")
    return folder


def test_it_has_course_images_and_settings_and_loads_nothing(version):
    page = run_page(version)
    for said in ("an adapter/v0", "Done", "40 / 40", "lowest held-out loss, step 20", "1.0"):
        assert said in page, said
    assert page.count("<path") == 2
    assert page.count('<img src="data:image/webp') == 1
    assert "seed: 1" in page
    assert "<script" not in page
    assert "\u202e" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    first, last = (
        float(x) for x in re.findall(r'd="M[\d.]+,([\d.]+).*?L[\d.]+,([\d.]+)"', page)[0]
    )
    assert first < last, "a loss that falls goes down on the page"


def test_the_verb_writes_it_into_the_newest_version(version, capsys):
    assert main(["report", str(version.parent)]) == 0
    assert capsys.readouterr().out.strip() == str(version / "report.html")
    (version / "metrics.jsonl").unlink()
    target = version.parent / "page.html"
    assert main(["report", str(version), "--html", str(target), "--json"]) == 0
    assert "<path" not in target.read_text(encoding="utf-8")
    failed = {"status": "failed", "reason": "a\nb"}
    for record, said in ((failed, "a<br>b"), ({"status": "running"}, "killed")):
        (version / "run.json").write_text(json.dumps(record), encoding="utf-8")
        assert said in run_page(version)
    (version / "run.json").write_text("{", encoding="utf-8")
    assert main(["report", str(version)]) == 2
