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

_TIMEOUT = 10.0  # seconds for the first connection

# Address -> the endpoint's text, by which upstream knows servers, and its devices. By text,
# "localhost:1" and "127.0.0.1:1" would be two clients, and the second would wait for the first.
_servers: dict[tuple[str, int], tuple[bytes, tuple[Device, ...]]] = {}
_lock = threading.Lock()


def rpc_devices(
    endpoint: str, timeout: float | None = None, compute_timeout: float | None = None
) -> tuple[Device, ...]:
    """The devices of the RPC server at "HOST:PORT" (IPv4), in the server's order.

    They are added to `devices()` and stay there. A second call returns the same devices without
    asking the server, unless it was lost: then the call reconnects. This process names the devices
    ("RPC0", ...); their description is the endpoint.

    `timeout` is how many seconds the server may be silent when an answer needs no computing (60 by
    default). `compute_timeout` is the same while it computes (no limit by default: a long compute
    does not mean a lost server). `math.inf` means no limit, None keeps the current setting. If the
    server goes away, is silent for longer or sends nonsense, the waiting call or the next one
    raises `ServerLostError`; closing objects on it raises nothing. The devices stay: once a server
    with as many devices listens there again, `Device.init` opens new backends on it. Ctrl-C ends a
    wait, and the connection stays usable. A server serves one client at a time: while it serves
    another, this waits up to `timeout` seconds.

    Raises `RpcError` if nobody listens there or the server speaks another version of the protocol,
    `MissingFunctionError` in a build without RPC, and `ArgumentError` for an invalid endpoint or
    limit. Releases before 0.24 have no limits: any limit raises `ArgumentError` there.
    C: ggml_backend_rpc_add_server, ggml_backend_register
    """
    host, port = _parse(endpoint)
    limits = _limit("timeout", timeout), _limit("compute_timeout", compute_timeout)
    add_server = _add_server()
    address = _resolve(endpoint, host, port)
    with _lock:  # so that two threads do not add it twice
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
    """The milliseconds for gp_rpc_set_limits; -1 keeps the setting, 0 is no limit."""
    if seconds is None:
        return -1
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ArgumentError(
            f"{name}={describe(seconds)}: expected seconds, a number above 0; math.inf means no "
            "limit, None keeps the current setting"
        )
    if BUILD["pristine"] or not lib.gp_rpc_guarded():
        raise ArgumentError(
            f"{name}={seconds}: the RPC backend of build {BUILD['key']} has no limits; expected a "
            "build of ggml 0.24.0 or later that is not pristine"
        )
    return 0 if seconds == math.inf else min(max(int(seconds * 1000), 1), 1 << 53)


def _add(endpoint: str, address: tuple[str, int], name: bytes, add_server: Any) -> Any:
    # Probed before upstream connects: if nobody listens, 0.26 aborts and 0.9.4 reads through NULL.
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
    """Reconnects to a lost server. Upstream counts its devices only once and keeps them."""
    try:
        for device in devices:
            device.memory  # noqa: B018  asks the server
    except ServerLostError as error:
        raise RpcError(
            f"RPC endpoint '{endpoint}': the server was lost, and reconnecting failed: "
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
    """Upstream's function: the linked one, or in portable builds that of the loaded module."""
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
        f"RPC endpoint '{endpoint}': {reason}. Expected an RPC server of the same ggml release; it "
        "serves one client at a time, and its own output says more"
    )
