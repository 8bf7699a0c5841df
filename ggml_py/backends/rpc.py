"""Devices of other machines, through ggml's RPC backend."""

from __future__ import annotations

import math
import socket
import threading
from typing import Any

from .. import log as _log
from ..boundary.arguments import c_text, describe
from ..boundary.ffi import BUILD, NULL, ffi, lib
from ..boundary.module import module_of
from ..errors import AbortError, ArgumentError, MissingFunctionError, RpcError, ServerLostError
from .device import Device

_TIMEOUT = 10.0  # seconds to connect in, the first time

# Address -> the endpoint's text, by which upstream knows servers, and its devices. "localhost:1"
# and "127.0.0.1:1" would be two, and the second would wait for the first to leave.
_servers: dict[tuple[str, int], tuple[bytes, tuple[Device, ...]]] = {}
_lock = threading.Lock()


def rpc_devices(
    endpoint: str, timeout: float | None = None, compute_timeout: float | None = None
) -> tuple[Device, ...]:
    """The devices of the RPC server at "HOST:PORT" (IPv4), in the server's order.

    They are added to `devices()` and stay there; asking again gives the same ones without asking
    the server, unless it was lost: then this connects anew. Names are given by this process
    ("RPC0", ...), the description is the endpoint.

    `timeout` is how many seconds the server may be silent while it owes an answer that needs no
    computing (60 at first), `compute_timeout` while it computes (at first without limit: a long
    compute is not a lost server). `math.inf` is without limit, None leaves what it was. A server
    that goes, is silent for longer or answers nonsense is `ServerLostError`, from whatever call
    waits for it or comes next; closing what was on it raises nothing. The devices stay: when a
    server with as many devices listens there again, `Device.init` opens new backends on it. Ctrl-C
    ends a wait, and the connection can be used afterwards. A server serves one client at a time:
    while it serves another this waits, `timeout` seconds long.

    Raises `ArgumentError` for what is no endpoint or limit, `RpcError` when nobody listens there or
    the server speaks another version of the protocol, `MissingFunctionError` in a build without
    RPC. Releases before 0.24 have no limits: `ArgumentError` for one.
    C: ggml_backend_rpc_add_server, ggml_backend_register
    """
    host, port = _parse(endpoint)
    limits = _limit("timeout", timeout), _limit("compute_timeout", compute_timeout)
    add_server = _add_server()
    address = _resolve(endpoint, host, port)
    with _lock:  # two threads would add it twice
        name = _servers[address][0] if address in _servers else f"{host}:{port}".encode()
        if limits != (-1, -1):
            lib.gp_rpc_set_limits(name, *limits)
        if address not in _servers:
            _servers[address] = name, _add(endpoint, address, name, add_server)
        devices = _servers[address][1]
    if not BUILD["pristine"] and lib.gp_rpc_is_lost(name):
        _ask_again(endpoint, devices)
    return devices


def _limit(name: str, seconds: float | None) -> int:
    """Milliseconds for gp_rpc_set_limits."""
    if seconds is None:
        return -1
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ArgumentError(
            f"{name}={describe(seconds)}: expected seconds, a number above 0; math.inf is without "
            "limit, None leaves it as it is"
        )
    if BUILD["pristine"] or not lib.gp_rpc_guarded():
        raise ArgumentError(
            f"{name}={seconds}: the RPC backend of build {BUILD['key']} has no limits; those of "
            "ggml 0.24.0 and later have, unless they are pristine"
        )
    return 0 if seconds == math.inf else min(max(int(seconds * 1000), 1), 1 << 53)


def _add(endpoint: str, address: tuple[str, int], name: bytes, add_server: Any) -> Any:
    # Asked before upstream does: 0.26 aborts when nobody listens, 0.9.4 reads through NULL.
    _probe(endpoint, address)
    mark = _log.mark()
    try:
        registry = add_server(name)
    except (AbortError, ServerLostError) as error:
        raise RpcError(_refused(endpoint, error.condition.strip())) from error
    if registry == NULL:
        raise RpcError(_refused(endpoint, "; ".join(_log.since(mark)) or "it has no devices"))
    lib.ggml_backend_register(registry)
    keep = f"it serves the devices of {endpoint}"
    module_of(lib.ggml_backend_reg_by_name(b"RPC")).keep = keep
    count = lib.ggml_backend_reg_dev_count(registry)
    return tuple(Device(lib.ggml_backend_reg_dev_get(registry, i)) for i in range(count))


def _ask_again(endpoint: str, devices: tuple[Device, ...]) -> None:
    """Connects to a server that was lost. Upstream counts its devices once and keeps them."""
    try:
        for device in devices:
            device.memory  # noqa: B018  asks the server
    except ServerLostError as error:
        raise RpcError(
            f"RPC endpoint '{endpoint}': the server that was there is lost, and now: "
            f"{error.condition}"
        ) from error


def _parse(endpoint: str) -> tuple[str, int]:
    c_text("RPC endpoint", endpoint)
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
        if not BUILD["pristine"]:
            return lambda endpoint: lib.gp_rpc_add_server(address, endpoint)
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
        "release, and serves one client at a time; its own output says more"
    )
