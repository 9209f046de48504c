"""A lost file of the cache changes the fingerprint, and nothing else does."""

import shutil


def test_only_a_loss_counts(cache_watch, tmp_path):
    watch = cache_watch.CacheWatch()
    assert watch.losses(tmp_path / "none") == 0
    (tmp_path / "latents").mkdir()
    file = tmp_path / "latents" / "a.safetensors"
    for step in ("new", "the same", "more"):
        file.write_text(step)
        (tmp_path / "latents" / f"{step}.safetensors").write_text("x")
        assert watch.losses(tmp_path) == 0
    file.unlink()
    assert watch.losses(tmp_path) == 1
    assert watch.losses(tmp_path) == 1
    (tmp_path / "latents" / "temporary").write_text("x")
    shutil.rmtree(tmp_path / "latents")
    assert watch.losses(tmp_path) == 2


def test_folders_are_watched_by_themselves(cache_watch, tmp_path):
    watch = cache_watch.CacheWatch(("text",))
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "text").mkdir(parents=True)
        (folder / "text" / "a.safetensors").write_text("x")
        assert watch.losses(folder) == 0
    (two / "text" / "a.safetensors").unlink()
    assert watch.losses(one) == 0
    assert watch.losses(two) == 1
