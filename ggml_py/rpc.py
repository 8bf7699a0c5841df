"""Devices of other machines, through ggml's RPC backend."""

from __future__ import annotations

import socket
import threading
from typing import Any

from . import _log
from ._device import Device
from ._ffi import NULL, ffi, lib
from ._module import module_of
from .errors import AbortError, ArgumentError, MissingFunctionError, RpcError

_TIMEOUT = 10.0  # seconds to connect in; upstream has no limit of its own

# Address -> devices. Upstream knows servers by the text of the endpoint, so that "localhost:1" and
# "127.0.0.1:1" would be two, and the second would wait for the first to leave.
_servers: dict[tuple[str, int], tuple[Device, ...]] = {}
_lock = threading.Lock()


def rpc_devices(endpoint: str) -> tuple[Device, ...]:
    """The devices of the RPC server at "HOST:PORT" (IPv4), in the server's order.

    They are added to `devices()` and stay there; asking again gives the same ones without asking
    the server. Names are given by this process ("RPC0", ...), the description is the endpoint. A
    server serves one client at a time: while it serves another, this waits. When a server goes
    away while a backend is open on it, ggml ends the process (its assertion fails on a thread of
    its own).

    Raises `ArgumentError` for what is no endpoint, `RpcError` when nobody listens there or the
    server speaks another version of the protocol, `MissingFunctionError` in a build without RPC.
    C: ggml_backend_rpc_add_server, ggml_backend_register
    """
    host, port = _parse(endpoint)
    add_server = _add_server()
    address = _resolve(endpoint, host, port)
    with _lock:  # two threads would add it twice
        if address not in _servers:
            _servers[address] = _add(endpoint, address, add_server)
    return _servers[address]


def _add(endpoint: str, address: tuple[str, int], add_server: Any) -> tuple[Device, ...]:
    # Asked before upstream does: 0.26 aborts when nobody listens, 0.9.4 reads through NULL.
    _probe(endpoint, address)
    mark = _log.mark()
    try:
        registry = add_server("{}:{}".format(*_parse(endpoint)).encode())
    except AbortError as error:
        raise RpcError(_refused(endpoint, error.condition.strip())) from error
    if registry == NULL:
        raise RpcError(_refused(endpoint, "; ".join(_log.since(mark)) or "it has no devices"))
    lib.ggml_backend_register(registry)
    keep = f"it serves the devices of {endpoint}"
    module_of(lib.ggml_backend_reg_by_name(b"RPC")).keep = keep
    count = lib.ggml_backend_reg_dev_count(registry)
    return tuple(Device(lib.ggml_backend_reg_dev_get(registry, i)) for i in range(count))


def _parse(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host or ":" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ArgumentError(
            f"RPC endpoint {endpoint!r}: expected HOST:PORT with an IPv4 host and a port of "
            "1 to 65535, as in '127.0.0.1:50052'"
        )
    return host, int(port)


def _add_server() -> Any:
    """Upstream's function: linked, or (portable builds) of the module that was loaded."""
    try:
        lib.ggml_backend_rpc_reg()
    except MissingFunctionError:
        registry = lib.ggml_backend_reg_by_name(b"RPC")
        if registry == NULL:
            raise
        name = b"ggml_backend_rpc_add_server"
        address = lib.ggml_backend_reg_get_proc_address(registry, name)
        return ffi.cast("ggml_backend_reg_t (*)(const char *)", address)
    return lib.ggml_backend_rpc_add_server


def _resolve(endpoint: str, host: str, port: int) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RpcError(f"RPC endpoint '{endpoint}': no host '{host}' ({error})") from error
    return str(found[0][4][0]), port


def _probe(endpoint: str, address: tuple[str, int]) -> None:
    try:
        socket.create_connection(address, _TIMEOUT).close()
    except OSError as error:
        raise RpcError(
            f"RPC endpoint '{endpoint}': nobody answers ({error.strerror or error}); start a "
            "server there (upstream's rpc-server) or check host, port and firewall"
        ) from error


def _refused(endpoint: str, reason: str) -> str:
    return (
        f"RPC endpoint '{endpoint}': {reason}. It has to be an RPC server of the same ggml "
        "release; its own output says more"
    )
