"""The header of a model at an http(s) address, without its weights.

Only ranges of bytes are asked for, a piece at a time, until the header is complete. They are
written into a sparse file of the model's full length: it takes no room on the disk, and everything
that reads a header can read it.
"""

from __future__ import annotations

import re
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from ..errors import GgufError
from ..files import bounds
from ..files.secrets import without_secrets
from .reader import Gguf

PIECE = 1 << 20  # bytes of the first range; each further one is twice as long
_PIECE_OF_PART = 64 << 10  # of the other parts of a model, which have no tokens
_MOST_PIECE = 16 << 20
_TRIES = 4
_NUMBER = "([0-9]{1,18})"
_RANGE = f"bytes {_NUMBER}-{_NUMBER}/{_NUMBER}"
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

_NAMES: dict[str, str] = {}  # of temporary files and folders, and of addresses with secrets

Progress = Callable[[int, int], object]


def is_address(path: object) -> bool:
    """Whether that is an http(s) address."""
    return isinstance(path, str) and path.startswith(("http://", "https://"))


@contextmanager
def header_of(address: str, progress: Progress | None = None) -> Iterator[Path]:
    """A file with the header of the model at `address`. For the first part of a split model the
    headers of the other parts lie beside it. The files exist until the block ends.

    `progress(n, total)` gets the number of received bytes and the size of the file. A lost
    connection is resumed where it broke off. Raises `GgufError` if the server does not send ranges
    of bytes together with the size of the whole file, and if the address does not exist or its
    certificate is not valid. A file that is not GGUF raises it, too.
    """
    with tempfile.TemporaryDirectory(prefix="ggml_py-") as folder:
        first = Path(folder) / _name_of(address)
        name = shown(address)
        if name != address:
            _NAMES[address] = name
        with named(folder, name.rpartition("/")[0]), named(first, name):
            room = bounds.HEADER - _fetch(address, first, progress, PIECE, bounds.HEADER)
            for other in _others(address):
                path = Path(folder) / _name_of(other)
                room -= _fetch(other, path, progress, _PIECE_OF_PART, room)
            yield first


@contextmanager
def named(local: str | Path, name: str | Path) -> Iterator[None]:
    """Puts the name that was given in place of a temporary one in the messages of exceptions."""
    _NAMES[str(local)] = str(name)
    try:
        yield
    except Exception as error:
        error.args = tuple(as_given(a) if isinstance(a, str) else a for a in error.args)
        raise


def as_given(text: str, to_download: dict[str, str] | None = None) -> str:
    """A message with the names that were given in place of temporary ones. The command line of a
    program, which reads no address with -m, has the name of the downloaded file; its address is
    added to `to_download`."""
    for local in sorted(_NAMES, key=len, reverse=True):
        if is_address(_NAMES[local]):
            file = shlex.quote(Path(local).name)
            parts = re.split(rf"(?<=-m )'?{re.escape(local)}'?", text)
            text = file.join(parts)
            if to_download is not None and parts[1:]:
                to_download[file] = _NAMES[local]
        text = text.replace(local, _NAMES[local])
    return text


def shown(address: str) -> str:
    """An address without its password and without values of its query that look like secrets."""
    return without_secrets(address)


def _name_of(address: str) -> str:
    name = unquote(urlsplit(address).path).rpartition("/")[2] or "model"
    return name if name.endswith(".gguf") else f"{name}.gguf"


def _others(address: str) -> list[str]:
    """The addresses of the other parts, if this is the first of several."""
    found = _PART.search(urlsplit(address).path)
    if found is None or int(found[1]) != 1:
        return []
    if int(found[2]) > bounds.PARTS:
        raise GgufError(
            f"{shown(address)}: its name says {int(found[2]):,} parts, expected at most "
            f"{bounds.PARTS:,}"
        )
    return [
        address.replace(found[0], f"-{i:05}-of-{found[2]}.gguf")
        for i in range(2, int(found[2]) + 1)
    ]


def _fetch(address: str, path: Path, progress: Progress | None, piece: int, room: int) -> int:
    """Writes the header into `path`, and gives the file its full length. The number of bytes that
    were read, in ranges of at least `piece`; the header ends within `room`."""
    import requests  # here: it takes 0.1 s

    with requests.Session() as session, path.open("wb") as file:
        have, total = 0, 0
        while True:
            if have >= room:
                parts = "" if room == bounds.HEADER else ", with those of the parts before it"
                most = f"{bounds.HEADER >> 20:,} MiB"
                raise GgufError(f"{shown(address)}: its header does not end within {most}{parts}")
            data, total = _range(session, address, have, have + piece, total)
            file.write(data)
            file.flush()
            have += len(data)
            if progress is not None:
                progress(have, total)
            if have >= total or _is_complete(path):
                break
            piece = min(2 * piece, _MOST_PIECE)
        file.truncate(total)
        return have


def _is_complete(path: Path) -> bool:
    """Whether the whole header is there."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            return True  # what reads it says what it is
    try:
        with Gguf.open(path, part=True, header_only=True) as gguf:
            return gguf.data_offset <= path.stat().st_size
    except GgufError:
        return False


def _range(session: Any, address: str, start: int, end: int, total: int) -> tuple[bytes, int]:
    """Bytes [start, end) of the file, or fewer at its end, and its length."""
    import requests
    from urllib3.exceptions import HTTPError

    got, last, name = bytearray(), None, shown(address)
    for _ in range(_TRIES):
        headers = {"Range": f"bytes={start + len(got)}-{end - 1}", "Accept-Encoding": "identity"}
        try:
            with _answer(session, address, headers, name) as answer:
                total = _total(answer, name, start + len(got), total)
                wanted = min(end, total) - start
                for part in _parts(answer.raw, name):
                    got += part
                    if len(got) >= wanted:
                        return bytes(got[:wanted]), total
                last = f"the connection ended after {len(got):,} of {wanted:,} bytes"
        except requests.exceptions.SSLError as error:
            raise GgufError(
                f"{name}: its certificate is not valid: {without_secrets(str(error))}"
            ) from None
        except (requests.exceptions.RequestException, HTTPError) as error:
            last = without_secrets(_reason(error))
    raise GgufError(
        f"{name} cannot be read ({_TRIES} tries): {last}. Check the address, or download the file"
    )


def _reason(error: BaseException) -> str:
    """What the system said, without the objects that requests wraps it in."""
    inside = (getattr(error, "reason", None), *error.args)
    inner = next((one for one in inside if isinstance(one, BaseException)), None)
    if inner is not None:
        return _reason(inner)
    return re.sub(r"(?s)^.*\[Errno -?\d+\] ", "", str(error)).rstrip(")") or type(error).__name__


def _answer(session: Any, address: str, headers: dict[str, str], name: str) -> Any:
    """The server's answer, before its body. It has `bounds.SECONDS` for all of it: the limit of
    requests is for each byte. Raises `GgufError`, and what requests raises."""
    from requests import Session
    from requests.exceptions import Timeout

    session.get_redirect_target = lambda _answer: None  # `ask` follows them
    found: list[Any] = []

    def ask() -> None:
        try:
            options: Any = {"headers": headers, "stream": True, "timeout": bounds.SECONDS}
            where = address
            for _ in range(bounds.REDIRECTS):
                answer = session.get(where, **options)
                target = Session.get_redirect_target(session, answer)
                if target is None:
                    found.append(answer)
                    return
                answer.close()  # requests would read its body to the end
                try:
                    where = urljoin(where, target)
                except ValueError:
                    raise GgufError(
                        f"{name}: its server redirects to {shown(target)!r}, which is no address"
                    ) from None
            raise GgufError(f"{name}: its server redirects more than {bounds.REDIRECTS} times")
        except BaseException as error:
            found.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(bounds.SECONDS)
    if not found or isinstance(found[0], Timeout):
        raise GgufError(
            f"{name}: its server has not answered within {bounds.SECONDS} s: try again later"
        )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _parts(body: Any, name: str) -> Iterator[bytes]:
    """The bytes of an answer, as they come. Raises `GgufError` if they come too slowly."""
    read = getattr(body, "read1", None) or (lambda _n: body.read(4096))  # urllib3 before 2.1
    began, n = time.monotonic(), 0
    while part := read(1 << 16):
        n += len(part)
        yield part
        took = time.monotonic() - began
        if took > bounds.SECONDS and n < bounds.SLOWEST * took:
            raise GgufError(
                f"{name}: {n:,} bytes came in {took:.0f} s, expected at least {bounds.SLOWEST:,} "
                "in a second: try again later, or download the model"
            )


def _total(answer: Any, address: str, start: int, before: int) -> int:
    """The length of the file. Raises `GgufError` for an answer that is not the range."""
    if answer.status_code == 200:
        length = re.fullmatch(_NUMBER, answer.headers.get("Content-Length", ""))
        size = f"{int(length[0]):,} bytes" if length else "an unknown number of bytes"
        raise GgufError(
            f"{address}: its server does not send parts of a file, so its header would cost the "
            f"whole file, {size}: download it, and give its path"
        )
    if answer.status_code != 206:
        raise GgufError(f"{address}: the server answers {answer.status_code} {answer.reason}")
    if (coding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise GgufError(
            f"{address}: the server was asked for plain bytes and sends them as {coding!r}"
        )
    found = re.fullmatch(_RANGE, answer.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != start:
        raise GgufError(
            f"{address}: the server was asked for bytes from {start:,} and sends "
            f"{answer.headers.get('Content-Range')!r}"
        )
    total = int(found[3])
    if before and total != before:
        raise GgufError(
            f"{address}: the file changed while it was read, from {before:,} to {total:,} bytes"
        )
    return total
