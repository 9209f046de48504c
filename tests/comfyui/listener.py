"""A client of ComfyUI's event socket, by the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from comfyui.server import ComfyServer

_TEXT, _PING, _PONG = 1, 9, 10


class Listener:
    """Hears what a server sends to a client, as the browser does.

    Attributes:
        heard: Type and content of every message, in the order of their coming.
    """

    def __init__(self, server: ComfyServer, client: str) -> None:
        self.heard: list[tuple[str, Any]] = []
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET /ws?clientId={client} HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        )
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._file = self._socket.makefile("rb")
        status = self._file.readline()
        assert b" 101 " in status, status
        while self._file.readline() not in (b"\r\n", b""):
            pass
        self._socket.settimeout(None)
        threading.Thread(target=self._listen, daemon=True).start()

    def of(self, event: str) -> list[Any]:
        """The contents of the messages of a type."""
        return [content for name, content in list(self.heard) if name == event]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                kind, content = self._frame()
                if kind == _TEXT:
                    message = json.loads(content)
                    self.heard.append((message["type"], message["data"]))
                elif kind == _PING:
                    self._socket.sendall(bytes([0x80 | _PONG, 0x80 | len(content)]) + bytes(4))

    def _frame(self) -> tuple[int, bytes]:
        first, length = self._read(2)
        if length == 126:
            (length,) = struct.unpack(">H", self._read(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._read(8))
        return first & 0x0F, self._read(length)

    def _read(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) < count:
            raise EOFError
        return content


@contextlib.contextmanager
def listening(server: ComfyServer, client: str = "") -> Iterator[Listener]:
    """Listen for the length of a block; unset: as the client of the server's prompts."""
    listener = Listener(server, client or server.client)
    try:
        yield listener
    finally:
        listener.close()
