"""Cleaning up runs: all or nothing, put back as it was, and nothing lost however it ends."""

import json
import os
import shutil
import signal
import subprocess

import pytest
from fixtures.leftovers import killed_while
from fixtures.small_disk import fill, small_disk  # noqa: F401 - a fixture

from trainer_core.errors import InputError, StorageError
from trainer_core.filesystem.temporary import remove
from trainer_core.training.checkpoints import run_folder, trash
from trainer_core.training.checkpoints.run_folder import create_version, open_version
from trainer_core.training.checkpoints.trash import Trash, disk_use

RUN = "cat/v0"


def made(root, name="cat"):
    """A run of two checkpoints that has ended; gives its files."""
    folder = create_version(root / name, {"steps": 8, "started": 1.0}, "seed: 1\n")
    for place in ("checkpoints/000004/state.json", "checkpoints/000008/adapter.safetensors"):
        (folder.path / place).parent.mkdir(parents=True)
        (folder.path / place).write_bytes(b"c" * 100)
    (folder.path / "samples/000008").mkdir(parents=True)
    (folder.path / "samples/000008/0.png").write_bytes(b"s" * 10)
    (folder.path / f"{name}.safetensors").write_bytes(b"a" * 50)
    folder.update_record(status="done", step=8)
    folder.release()
    return files(root)


def files(root):
    found = (path for path in root.rglob("*") if path.is_file() and path.name != "lock.json")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def cleaned(root, *parts):
    """A trash with parts of a run in it, and their entry."""
    found = Trash(root)
    found.clean(RUN, parts)
    return found, found.entries()[0]


def of_run(root, run=RUN):
    return {name: content for name, content in files(root).items() if name.startswith(run)}


def test_disk_use_says_what_takes_how_much(tmp_path):
    made(tmp_path)
    use = disk_use(tmp_path / RUN)
    assert use["checkpoints"] == {"count": 2, "bytes": 200}
    assert use["samples"] == {"count": 1, "bytes": 10}
    assert use["adapters"] == {"count": 1, "bytes": 50}
    sizes = sum(len(content) for content in files(tmp_path).values())
    assert sum(each["bytes"] for each in use.values()) == sizes


@pytest.mark.parametrize("parts", [["checkpoints"], ["samples", "checkpoints"], ["run"]])
def test_what_is_cleaned_up_can_be_put_back_as_it_was(tmp_path, parts):
    before, root_trash = made(tmp_path), Trash(tmp_path)
    root_trash.clean(RUN, parts)
    left = {name for name in before if not any(f"{RUN}/{part}" in name for part in parts)}
    assert set(of_run(tmp_path)) == (set() if parts == ["run"] else left)
    (entry,) = root_trash.entries()
    assert entry["run"] == RUN
    assert root_trash.restore(entry["id"]) == RUN
    assert files(tmp_path) == before
    assert root_trash.entries() == []
    open_version(tmp_path / RUN).release()


def test_emptied_it_is_gone(tmp_path):
    made(tmp_path)
    root_trash, entry = cleaned(tmp_path, "checkpoints")
    root_trash.empty()
    assert not [*(tmp_path / ".trash").iterdir()]
    with pytest.raises(InputError, match="the trash has no"):
        root_trash.restore(entry["id"])


def test_what_is_open_while_the_trash_is_emptied_is_removed_by_the_next_start(
    tmp_path, monkeypatch
):
    made(tmp_path)
    found, _ = cleaned(tmp_path, "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr(trash, "remove", lambda path: path.name == "checkpoints" or remove(path))
        found.empty()
    assert "checkpoints/000004" in "".join(files(tmp_path))
    Trash(tmp_path).sweep()
    assert not [*(tmp_path / ".trash").iterdir()]


def test_a_run_that_trains_is_refused_here_and_in_another_process(tmp_path):
    before = made(tmp_path)
    with open_version(tmp_path / RUN):
        with pytest.raises(InputError, match="in use by"):
            Trash(tmp_path).clean(RUN, ["checkpoints"])
        answer, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                Trash(tmp_path).clean(RUN, ["run"])
            except InputError as error:
                os.write(tell, error.found.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert b"in use by process" in os.read(answer, 1000)
    assert files(tmp_path) == before


def test_another_run_of_the_name_is_not_touched_by_what_is_put_back(tmp_path):
    before = made(tmp_path)
    root_trash, entry = cleaned(tmp_path, "run")
    other = made(tmp_path)
    assert root_trash.restore(entry["id"]) == "cat/v1"
    assert of_run(tmp_path).keys() == {name for name in other if name.startswith(RUN)}
    assert [*of_run(tmp_path, "cat/v1").values()] == [*before.values()]

    root_trash.clean(RUN, ["checkpoints"])
    shutil.rmtree(tmp_path / RUN)
    create_version(tmp_path / "cat", {"started": 2.0}, "").release()
    (tmp_path / "cat/v2").rename(tmp_path / RUN)
    (entry,) = root_trash.entries()
    with pytest.raises(InputError, match="is another run by now"):
        root_trash.restore(entry["id"])
    assert root_trash.entries() == [entry]


def test_samples_of_a_run_that_went_on_are_not_put_back(tmp_path):
    made(tmp_path)
    root_trash, entry = cleaned(tmp_path, "samples")
    with open_version(tmp_path / RUN) as version:
        version.update_record(started=2.0)
    with pytest.raises(InputError, match="went on"):
        root_trash.restore(entry["id"])
    shutil.rmtree(tmp_path / RUN)
    with pytest.raises(InputError, match="is gone"):
        root_trash.restore(entry["id"])
    assert not (tmp_path / RUN).exists()


def test_a_run_that_trains_keeps_its_empty_folder(tmp_path):
    made(tmp_path)
    root_trash, entry = cleaned(tmp_path, "samples")
    (tmp_path / RUN / "samples").mkdir()
    with open_version(tmp_path / RUN), pytest.raises(InputError, match="in use by"):
        root_trash.restore(entry["id"])
    assert (tmp_path / RUN / "samples").is_dir()
    root_trash.restore(entry["id"])
    assert (tmp_path / RUN / "samples/000008/0.png").is_file()


def test_what_is_no_version_is_not_cleaned_up_and_what_is_not_ours_stays(tmp_path):
    (tmp_path / "cat/vacation/samples").mkdir(parents=True)
    with pytest.raises(InputError, match="is not a run"):
        Trash(tmp_path).clean("cat/vacation", ["run"])
    trash_folder = tmp_path / ".trash"
    for name in ("a", "b" * 16, "lock", "d" * 16):
        (trash_folder / name / "part").mkdir(parents=True)
    for name in ("a/moved.json", "lock/lock.json"):
        (trash_folder / name).write_text("{}")
    (trash_folder / f"{'d' * 16}/going.json").write_text("{}")
    Trash(tmp_path).sweep()
    assert {each.name for each in trash_folder.iterdir()} == {"a", "b" * 16, "lock"}
    assert not (trash_folder / "a/lock.json").exists()


def test_checkpoints_that_were_made_since_stay(tmp_path):
    made(tmp_path)
    root_trash, entry = cleaned(tmp_path, "checkpoints")
    (tmp_path / RUN / "checkpoints/000002").mkdir(parents=True)
    with pytest.raises(InputError, match="has other checkpoints"):
        root_trash.restore(entry["id"])
    assert (tmp_path / RUN / "checkpoints/000002").is_dir()


def test_a_run_that_the_next_start_would_remove_is_cleaned_up_as_a_whole_alone(tmp_path):
    made(tmp_path)
    record = tmp_path / RUN / "run.json"
    facts = json.loads(record.read_text()) | {"status": "cancelled", "step": 3}
    record.write_text(json.dumps(facts))
    with pytest.raises(InputError, match="nothing is left"):
        Trash(tmp_path).clean(RUN, ["checkpoints"])
    Trash(tmp_path).clean(RUN, ["run"])


def killed_at(monkeypatch, number, *, behind):
    """Let a rename kill this process, before it or behind it."""
    renames = iter(range(1000))

    def deadly(path, target, **how):
        mine = next(renames) == number
        if not (mine and not behind):
            move(path, target, **how)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)

    move = run_folder.move
    for module in (trash, run_folder):
        monkeypatch.setattr(module, "move", deadly)


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("parts", [["checkpoints", "samples"], ["run"]], ids=str)
def test_killed_at_any_rename_the_run_is_as_it_was_or_cleaned_up(
    tmp_path, monkeypatch, parts, number, behind
):
    before = made(tmp_path)
    left = {n: c for n, c in before.items() if not any(f"{RUN}/{p}" in n for p in parts)}
    left = {} if parts == ["run"] else left

    def clean():
        killed_at(monkeypatch, number, behind=behind)
        Trash(tmp_path).clean(RUN, parts)

    killed_while(clean)
    Trash(tmp_path).sweep()
    assert files(tmp_path) in (before, left)
    # The first rename names the entry, then each part goes, and the last one says that all did.
    last = number > len(parts) + 1 or (number == len(parts) + 1 and behind)
    assert files(tmp_path) == (left if last else before)

    def restore():
        root_trash, entry = cleaned(tmp_path, *parts)
        killed_at(monkeypatch, number, behind=behind)
        root_trash.restore(entry["id"])

    if not last:
        killed_while(restore)
        Trash(tmp_path).sweep()
        assert files(tmp_path) in (before, left)


def test_what_a_living_process_can_put_back_is_swept_by_no_other(tmp_path):
    before = made(tmp_path)
    mine, entry = cleaned(tmp_path, "run")
    child = os.fork()
    if child == 0:
        Trash(tmp_path).sweep()
        os._exit(0)
    os.waitpid(child, 0)
    mine.restore(entry["id"])
    assert files(tmp_path) == before


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_on_a_disk_that_takes_nothing_all_stays(small_disk, how):  # noqa: F811
    before = made(small_disk)
    if how == "full":
        fill(small_disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError) as error:
        Trash(small_disk).clean(RUN, ["checkpoints", "samples"])
    assert {"full": "full", "read-only": "cannot be written"}[how] in error.value.found
    if how == "full":
        (small_disk / "filler").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert files(small_disk) == before
    Trash(small_disk).clean(RUN, ["checkpoints"])


def test_links_lead_nowhere(tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / "else/precious").write_bytes(b"p")
    root = tmp_path / "runs"
    root.mkdir()
    made(root)
    (root / RUN / "checkpoints/link").symlink_to(tmp_path / "else")
    root_trash = Trash(root)
    root_trash.clean(RUN, ["checkpoints"])
    root_trash.empty()
    assert (tmp_path / "else/precious").exists()
    shutil.rmtree(root / ".trash")
    (root / ".trash").symlink_to(tmp_path / "else")
    with pytest.raises(InputError, match="leads out"):
        root_trash.clean(RUN, ["samples"])
    # Somebody's own entry names no run outside.
    (root / ".trash").unlink()
    entry = root / f".trash/{'e' * 16}"
    (entry / "run").mkdir(parents=True)
    (entry / "moving.json").write_text(json.dumps({"run": "../evil", "parts": ["run"]}))
    root_trash.sweep()
    assert not (tmp_path / "evil").exists()
    assert root_trash.entries() == []
