"""The closest matrix of a rank: how near to the closest one, for every kind of spectrum."""

import pytest
import torch

from trainer_core.tensors.randomized_svd import closest_of_rank

ROWS, COLUMNS = 340, 300
PLACES = torch.arange(1, COLUMNS + 1, dtype=torch.float64)
SPECTRA = {
    "flat": torch.ones(COLUMNS, dtype=torch.float64),
    "slow": PLACES**-0.5,
    "fast": PLACES**-2.0,
    "falling": 0.9**PLACES,
    "step": torch.where(PLACES <= 8, 1.0, 0.5).double(),
}


def matrix_of(values, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def turned(size):
        square = torch.randn(size, COLUMNS, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(square)[0]

    return (turned(ROWS) * values) @ turned(COLUMNS).t()


@pytest.mark.parametrize("rank", [1, 8, 32])
@pytest.mark.parametrize("name", SPECTRA)
def test_it_is_within_one_percent_of_the_closest(name, rank):
    matrix = matrix_of(SPECTRA[name])
    for given in (matrix, matrix.t().float()):
        u, s, vh = closest_of_rank(given, rank)
        assert len(s) == rank
        error = torch.linalg.matrix_norm(given.double() - (u * s) @ vh)
        assert error <= 1.01 * SPECTRA[name][rank:].norm()
        assert torch.allclose(u.t() @ u, torch.eye(rank, dtype=torch.float64), atol=1e-5)


def test_one_step_of_the_method_would_not_be_enough():
    matrix = matrix_of(SPECTRA["slow"])
    start = torch.randn(COLUMNS, 24, generator=torch.Generator().manual_seed(0)).double()
    basis = torch.linalg.qr(matrix @ start)[0]
    u, s, vh = torch.linalg.svd(basis.t() @ matrix, full_matrices=False)
    error = torch.linalg.matrix_norm(matrix - (basis @ u[:, :8] * s[:8]) @ vh[:8])
    assert error > 1.02 * SPECTRA["slow"][8:].norm()
