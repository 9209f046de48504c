"""A lost file of the cache changes the fingerprint, and nothing else does."""


def test_folders_are_watched_by_themselves(rerun_stamps, tmp_path):
    watch = rerun_stamps.OutputWatch()
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "text").mkdir(parents=True)
        (folder / "text" / "a.safetensors").write_text("x")
        assert watch.missing_count(folder) == 0
    (two / "text" / "a.safetensors").unlink()
    assert watch.missing_count(one) == 0
    assert watch.missing_count(two) == 1


def test_a_lost_adapter_counts_for_its_node_alone(rerun_stamps, tmp_path):
    watch = rerun_stamps.AdapterWatch()
    files = [tmp_path / name for name in ("a", "b", "c")]
    for node, name, file in zip("112", ("one", "two", "one"), files, strict=True):
        file.write_text("x")
        assert watch.missing_count(node, name) == 0
        watch.hand_on(node, name, file)
    asked = [("1", "one"), ("1", "two"), ("2", "one")]
    assert [watch.missing_count(*each) for each in asked] == [0, 0, 0]
    files[0].unlink()
    for _ in range(2):
        assert [watch.missing_count(*each) for each in asked] == [1, 0, 0]
    # Made again and lost again; nobody else has noticed.
    files[0].write_text("x")
    watch.hand_on("1", "one", files[0])
    files[0].unlink()
    assert [watch.missing_count(*each) for each in asked] == [2, 0, 0]
