"""What a route sends that is not a JSON value: each kind with what a browser may do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aiohttp import web

# No script, no network, no form; and `sandbox` takes the page ComfyUI's origin, so that not even
# a file that somebody else put there reaches the server.
_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class ServedFile(NamedTuple):
    """The bytes of an answer, for `add_route`, which adds that their type is not to be guessed."""

    content: bytes
    content_type: str
    headers: dict[str, str]


def json_file(content: bytes) -> ServedFile:
    """A JSON file as it lies on disk."""
    return ServedFile(content, "application/json", {"Cache-Control": "no-store"})


def image_file(content: bytes) -> ServedFile:
    """A WebP image; its address has to change with its content."""
    return ServedFile(content, "image/webp", {"Cache-Control": "max-age=86400"})


def html_page(content: bytes) -> ServedFile:
    """An HTML file in UTF-8 that has everything in it, to be read and nothing else."""
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": _POLICY,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
    }
    return ServedFile(content, "text/html", headers)


def file_response(file: ServedFile, status: int) -> web.Response:
    """The answer of ComfyUI's server with a file."""
    from aiohttp import web

    headers = {"X-Content-Type-Options": "nosniff", **file.headers}

    class FileResponse(web.Response):
        """Sets its headers last: ComfyUI may write a policy of its own over that of any answer."""

        async def prepare(self, request: web.BaseRequest) -> Any:
            self.headers.update(headers)
            return await super().prepare(request)

    charset = "utf-8" if file.content_type == "text/html" else None
    return FileResponse(
        body=file.content, status=status, content_type=file.content_type, charset=charset
    )
