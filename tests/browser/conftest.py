"""A ComfyUI server of their own for the browser tests, because its settings are changed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.browser import Browser, missing
from browser.page import RENDERERS, GraphPage
from comfyui.conftest import comfy_programs, make_data, write_example
from comfyui.server import ComfyServer, comfy_server
from fixtures.combinations import some


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[ComfyServer]:
    if reason := missing():
        pytest.skip(reason)
    folder, python = comfy_programs()
    data = make_data(tmp_path_factory.mktemp("browser"))
    write_example(data)
    with pytest.MonkeyPatch.context() as patch:
        add_desktop(patch, data)
        server = comfy_server(folder, python, data)
        running = server.__enter__()
    try:
        yield running
    finally:
        server.__exit__(None, None, None)


def add_desktop(patch: pytest.MonkeyPatch, data: Path) -> None:
    """A desktop for the server, whose file manager writes down what it is to show."""
    program = data / "desktop" / "xdg-open"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf %s "$1" > "$(dirname "$0")/shown"\n', encoding="utf-8")
    program.chmod(0o755)
    patch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    patch.setenv("DISPLAY", ":none")


@pytest.fixture(scope="session")
def browser(server) -> Iterator[Browser]:
    browser = Browser(server.address)
    yield browser
    browser.close()


@pytest.fixture(scope="module", params=some(RENDERERS, "canvas"))
def opened(request, server, browser) -> GraphPage:
    """ComfyUI's page in one renderer."""
    page = GraphPage(server, browser, request.param)
    page.open()
    return page


@pytest.fixture
def page(opened) -> Iterator[GraphPage]:
    """The page without the problems of the test before; what was left running is stopped."""
    opened.browser.forget_problems()
    yield opened
    server = opened.server
    server.post("/instruments/disturb", {"what": "nothing"})
    server.post("/queue", {"clear": True})
    server.post("/interrupt", {})
    server.wait(lambda: server.get("/prompt")["exec_info"]["queue_remaining"] == 0, 60)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs ComfyUI and a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.comfy)
            item.add_marker(pytest.mark.browser)
