"""The GPU campaign rehearsed on a CPU with tiny bases: what runs there is what runs here."""

import dataclasses
import json
import math
import os

import pytest

from benchmarks import gpu_campaign
from benchmarks.campaign import measure
from benchmarks.campaign.cells import BASELINE, FIRST, WAYS, Way, all_cells, groups, to_measure
from benchmarks.campaign.lines import BEGUN, NAME, begin, begun, read_lines, write_line
from benchmarks.campaign.measure import AGAIN, Bench
from benchmarks.gpu_campaign import FAILED, Campaign, first_batch
from benchmarks.measuring.record import RESULTS, read_record

CELLS = {cell.name: cell for cell in all_cells()}
SWAPPED = "bf16, all swapped"
QUICK = {
    ("qwen_image", BASELINE),
    ("flux", BASELINE),
    ("flux", "int8, 8bit"),
    ("flux", "nf4, half swapped"),
}
EVERY = [
    pytest.param(group, id=group[0].name, marks=() if key in QUICK else pytest.mark.exhaustive)
    for group in groups(all_cells())
    if not group[0].way.alone
    for key in [(group[0].family, group[0].way_name)]
]


@pytest.fixture(autouse=True)
def _two_steps(monkeypatch):
    monkeypatch.setattr(measure, "WARM_UP", 1)
    monkeypatch.setattr(measure, "STEPS", 1)


def bench(folder, kind=Bench):
    return kind(folder, "tiny", "cpu", "first")


def measured(folder):
    return [line for line in read_lines(folder) if line["part"] == "bases"]


@pytest.mark.parametrize("group", EVERY)
def test_a_way_is_measured_in_the_real_loop(tmp_path, group):
    done = bench(tmp_path).measure(group)
    lines = measured(tmp_path)
    assert [line["cell"] for line in lines] == [cell.name for cell in group]
    assert done
    for line in lines:
        assert line["status"] == "measured", line.get("error")
        assert line["load_seconds"] > 0
        if group[0].way.from_file:
            continue
        assert len(line["losses"]) == 2
        assert all(0 < loss < 100 for loss in line["losses"])
        assert line["seconds"] > 0
    assert begun(tmp_path) is None


class Breaking(Bench):
    """Breaks at the second size."""

    steps = 0

    def _steps(self, run, data, config):
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("CUDA out of memory.")
        return super()._steps(run, data, config)


def test_what_a_cell_dies_of_is_its_result(tmp_path):
    cells = [CELLS[f"qwen_image {pixels} {BASELINE}"] for pixels in (1024, 512)]
    assert bench(tmp_path, Breaking).work(cells, math.inf) == AGAIN
    assert [line["status"] for line in measured(tmp_path)] == ["measured", "out of memory"]
    # A setting that no version has: nothing was loaded, and the process may go on.
    odd = dataclasses.replace(cells[0], way=Way({"memory": {"magic": True}}))
    assert bench(tmp_path).measure([odd])
    assert measured(tmp_path)[-1]["status"] == "refused"


def test_cells_are_whole_and_baselines_come_first():
    names = list(CELLS)
    assert len(names) == len(set(names)) == len(all_cells())
    assert names[0] == f"flux 1024 {BASELINE}"
    assert all(
        (family, way) in {(c.family, c.way_name) for c in CELLS.values()} for family, way in FIRST
    )
    assert all(cell.baseline in CELLS for cell in all_cells())
    ordered = [cell.name for cell in to_measure({}, "a")]
    assert sorted(ordered) == sorted(names)
    assert all(ordered.index(CELLS[name].baseline) <= ordered.index(name) for name in names)
    known = dict.fromkeys(names[:-1], "a")
    last = CELLS[names[-1]]
    assert [cell.name for cell in to_measure(known, "b")] == [last.baseline, last.name]
    assert to_measure(known, "a") == [last]
    assert to_measure(dict.fromkeys(names, "a"), "b") == []
    compiled = [group for group in groups(all_cells()) if group[0].way.alone]
    assert all(len(group) == 1 for group in compiled)
    assert first_batch(compiled[0] + compiled[1]) == compiled[0]
    assert {cell.way_name for cell in all_cells()} == set(WAYS)


class InOneProcess(Campaign):
    """Measures in this process, and dies once of a cell."""

    dies_of = ""
    starts = 0

    def _run(self, command, limit, stuck=None):
        if command[1] != "benchmarks.campaign.measure":
            return super()._run(command, limit, stuck)
        self.starts += 1
        words = list(command[2:])
        names = json.loads(words[-1])
        if names[0] == self.dies_of:
            begin(self.output, names[0])
            return -9, "killed"
        if self.dies_of in names:
            words[-1] = json.dumps(names[: names.index(self.dies_of)])
        return measure.main(words), ""


def short(monkeypatch, *names):
    chosen = [CELLS[name] for name in names]
    monkeypatch.setattr("benchmarks.campaign.cells.all_cells", lambda: chosen)


def campaign(folder, kind=InOneProcess):
    """One that is never late."""
    return kind(folder, math.inf, "tiny", "cpu", {})


@pytest.mark.exhaustive
def test_a_campaign_goes_on_after_a_crash_and_in_the_next_call(tmp_path, monkeypatch):
    base, swapped, other = (
        f"qwen_image 512 {way}" for way in (BASELINE, SWAPPED, "int8, half swapped")
    )
    short(monkeypatch, base, swapped, other)
    first = campaign(tmp_path)
    first.dies_of = swapped
    first.bases()
    found = {line["cell"]: line["status"] for line in measured(tmp_path)}
    assert found == {base: "measured", swapped: "crashed", other: "measured"}
    assert "status -9: killed" in measured(tmp_path)[1]["error"]
    again = campaign(tmp_path)
    again.bases()
    assert again.starts == 0
    # The line of the last cell is lost in the middle: the next call measures it, and its baseline.
    lines = (tmp_path / NAME).read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if f'"cell": "{other}", "size"' in line)
    (tmp_path / NAME).write_text("".join(lines[:at]) + lines[at][:40] + "\n")
    campaign(tmp_path).bases()
    assert [line["cell"] for line in measured(tmp_path)][2:] == [base, other]


def test_processes_are_stopped_at_their_limit_or_when_they_are_stuck(tmp_path, monkeypatch):
    here = campaign(tmp_path, kind=Campaign)
    begun = tmp_path / "begun"
    wait = f"print('begun', flush=True); open({str(begun)!r}, 'w'); time.sleep(3600)"
    sleep = ["-c", f"import time; {wait}"]
    assert here._run(sleep, 0.0)[0] == -9
    begun.unlink(missing_ok=True)  # on a busy machine the first one may come as far
    assert here._run(sleep, math.inf, lambda since: begun.exists()) == (-9, "begun\n")
    monkeypatch.setattr(gpu_campaign, "LONGEST_CELL", 0.0)
    assert here._run(sleep, math.inf, here._stuck)[0] == -9
    assert here._run(["-c", f"raise SystemExit({FAILED})"], math.inf) == (FAILED, "")
    assert FAILED == AGAIN


def test_what_a_kill_or_another_program_left_is_read_as_far_as_it_goes(tmp_path):
    good = {"part": "bases", "call": "a", "size": "tiny", "cell": "x"}
    write_line(tmp_path, good)
    for rest in (b'{"part": "ba', b"\xff\xfe\n[1]\n", b'{"part": "bases", "call": "a"}'):
        with (tmp_path / NAME).open("ab") as file:
            file.write(rest)
        write_line(tmp_path, good)
    assert [line for line in read_lines(tmp_path) if "cell" in line] == [good] * 4
    (tmp_path / BEGUN).write_text('{"ce')
    assert begun(tmp_path) is None
    assert campaign(tmp_path, kind=Campaign).known() == {"x": "a"}


def test_a_full_disk_ends_a_call_in_three_lines(tmp_path, monkeypatch, capsys):
    (tmp_path / NAME).symlink_to("/dev/full")
    monkeypatch.setattr(Campaign, "_run", lambda *given: (0, '{"commit": "c"}'))
    assert gpu_campaign.main(["--output", str(tmp_path), "--wheels", str(tmp_path)]) == 2
    found, expected, remedy = capsys.readouterr().err.splitlines()
    assert "No space left" in found
    assert str(tmp_path) in expected
    assert "call it again" in remedy


def test_tests_that_the_budget_cut_off_are_left_for_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setattr(Campaign, "_run", lambda *given: (-9, ""))
    here, late = campaign(tmp_path, kind=Campaign), campaign(tmp_path, kind=Campaign)
    monkeypatch.setattr(Campaign, "left", 30.0)
    late.light()
    assert read_lines(tmp_path) == []
    assert late.pending(["light"]) > 5
    monkeypatch.setattr(Campaign, "left", 1000.0)
    here.light()
    assert here.pending(["light"]) == 0
    assert here.pending(["light", "tests"]) == len(gpu_campaign.HEAVY)


def test_a_process_ends_with_the_one_that_started_it(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    measure._end_with(os.getppid() + 1)
    assert ended == [AGAIN]


def test_the_steps_that_were_measured_are_predicted():
    """Rates are those of the first trace; the others, and all peaks, are predicted."""
    record = read_record(RESULTS / "gpu_campaign.json")
    rows = {row["cell"]: row for row in record["rows"]}
    for row in rows.values():
        assert row["peak_bytes"] == pytest.approx(row["plan_bytes"], rel=0.02)
        if "seconds" in row:
            assert row["plan_seconds"] == pytest.approx(row["seconds"], rel=0.1)
    for trace in record["traces"]:
        row = rows[trace["cell"]]
        assert row["plan_launches"] == pytest.approx(trace["launches"], rel=0.2)
        assert sum(row["plan_parts"].values()) == pytest.approx(
            sum(trace["seconds"].values()), rel=0.15
        )
        for part, seconds in trace["seconds"].items():
            assert row["plan_parts"][part] == pytest.approx(seconds, rel=0.25)
