"""Which cases of a file this run has: a fixture for all of them leaves out what nobody looks at."""

from typing import Any

import pytest


def selected(request: pytest.FixtureRequest, *names: str) -> set[tuple[Any, ...]]:
    """The values of some parameters, of every test of the fixture's file that has them all."""
    found = set()
    for item in request.session.items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        if item.path == request.path and parameters and parameters.keys() >= set(names):
            found.add(tuple(parameters[name] for name in names))
    return found
