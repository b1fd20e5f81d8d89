"""A small HTTP client for a serving engine: direct, bounded in time and size, no redirects to elsewhere."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from diagnose.errors import UsageError

MAX_BYTES = 64 << 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServerError(Exception):
    """The server did not do what was asked. `status` is the HTTP status, None when there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """A redirect is an answer like any other here: never follow it to another host."""
        return


class Server:
    """One engine's address. Environment proxies are not used: what is asked for is asked for directly."""

    def __init__(self, url: str) -> None:
        self.base = check_url(url)
        self.host = urlsplit(self.base).hostname or ""
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    @property
    def local(self) -> bool:
        """Whether the server runs on this machine, so that its files may be reachable."""
        return self.host in LOOPBACK

    def get(self, path: str, timeout_s: float = 5.0) -> str:
        """The body of a GET. Raises ServerError."""
        return self._send(urllib.request.Request(self.base + path), timeout_s)

    def get_json(self, path: str, timeout_s: float = 5.0) -> Any:
        """The parsed body of a GET. Raises ServerError, also when it is not JSON."""
        try:
            return json.loads(self.get(path, timeout_s))
        except ValueError:
            raise ServerError(f"{path}: the answer is not JSON") from None

    def post(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> str:
        """The body of a POST with a JSON body, or an empty one. Raises ServerError."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        return self._send(
            urllib.request.Request(self.base + path, data=data, headers=headers, method="POST"), timeout_s
        )

    def _send(self, request: urllib.request.Request, timeout_s: float) -> str:
        path = request.selector
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                body = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                error.read(4096)
            raise ServerError(f"{path}: HTTP {error.code}", error.code) from None
        except TimeoutError:
            raise ServerError(f"{path}: no answer within {timeout_s:g} s") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise ServerError(f"{path}: no answer within {timeout_s:g} s") from None
            raise ServerError(f"{path}: {_plain(error.reason)}") from None
        except (OSError, HTTPException) as error:
            raise ServerError(f"{path}: {_plain(error)}") from None
        if len(body) > MAX_BYTES:
            raise ServerError(f"{path}: the answer is larger than {MAX_BYTES >> 20} MiB")
        text: str = body.decode("utf-8", "replace")
        return text


def _plain(error: Any) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def check_url(url: str) -> str:
    """`url` without a trailing slash. UsageError unless it is http(s) to a host, without credentials."""
    if "//" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"--url {url}: not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url}: give http://HOST:PORT")
    if parts.username or parts.password:
        raise UsageError("--url: leave user and password out; they would be stored in shell history")
    del port
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
