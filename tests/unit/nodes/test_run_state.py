"""What the panel shows of a run that goes back to an older state."""


def test_a_run_that_goes_back_forgets_what_it_makes_again(run_state):
    state = run_state.RunState("7", "p1", "adapter", 9)
    for step in range(1, 7):
        state.add_point((step, 1.0 / step, 0.1))
    for step in (0, 2, 4, 6):
        state.add_held_out((step, 0.5, None))
        state.samples.append({"step": step, "index": 0})
    state.step = 6
    before = state.snapshot()
    assert before["returns"] == 0
    state.go_back(4)
    after = state.snapshot()
    assert (after["step"], after["returns"]) == (4, 1)
    assert [each[0] for each in after["points"]] == [1, 2, 3, 4]
    assert [each[0] for each in after["held_out"]] == [0, 2, 4]
    assert [each["step"] for each in after["samples"]] == [0, 2, 4]
    assert state.progress([])["returns"] == 1, "also what is sent with each step"
    state.go_back(0)
    again = state.snapshot()
    assert (again["points"], again["returns"]) == ([], 2)
    assert [each[0] for each in again["held_out"]] == [0]
    assert before["points"][-1][0] == 6, "what was sent stays as it was"
