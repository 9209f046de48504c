"""The benchmark's own parts: what it counts, what it times, what it calls met."""

import torch

from benchmarks.measuring.counters import Products


def test_the_products_of_attention_are_those_of_its_matrices():
    rows, columns, width = 6, 10, 8
    query, other = torch.ones(2, rows, width, requires_grad=True), torch.ones(2, columns, width)
    with Products() as products:
        found = torch.nn.functional.scaled_dot_product_attention(
            query[None], other[None], other[None]
        )
        forward = products.flops
        found.sum().backward()
    one = 2 * 2 * rows * columns * width
    assert forward == 2 * one
    # Again the scores, and a gradient of each of four matrices.
    assert products.flops == 2 * one + 5 * one
