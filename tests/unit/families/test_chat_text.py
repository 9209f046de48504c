"""The shared text side of families with a chat model, against transformers' own hidden states."""

from trainer_core.families.chat_text import count_rows, cut_rows, second_message


def test_rows_of_comfyui_are_cut_behind_the_second_message() -> None:
    row = [(token, 1.0) for token in (151644, 7, 2, 151644, 872, 198, 1, 2, 3, 2)]
    rows = {"qwen": [row]}
    assert count_rows(rows) == 10
    assert count_rows(rows, second_message) == 4
    assert cut_rows(rows, None, 0)["qwen"] == [row]
    assert cut_rows(rows, 4, 0)["qwen"] == [row[:4]]
    assert cut_rows(rows, 2, 0, second_message)["qwen"] == [row[:8]]
    seen = [*row[:8], ({"type": "image"}, 1.0), *row[8:]]
    assert cut_rows({"qwen": [seen]}, 1, 1, second_message)["qwen"] == [seen[:10]]
