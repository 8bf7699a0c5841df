"""A server on this machine that sends ranges of files, as hosts of models do."""

import http.server
import ssl
import threading
import time
from contextlib import contextmanager


class Server(http.server.BaseHTTPRequestHandler):
    """Sends ranges of files; `faults` says what goes wrong."""

    folder = None
    faults = frozenset()
    asked = ()
    sent = 0

    def log_message(self, *_args):
        pass

    def do_GET(self):
        path = self.folder / self.path.rpartition("/")[2]
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        if wanted is None or "no ranges" in self.faults:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        size = len(data) + ("grows" in self.faults) * len(self.asked)
        shown = first + 1 if "wrong place" in self.faults else first
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {shown}-{shown + len(part) - 1}/{size}")
        if "compressed" in self.faults:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if "slow" in self.faults:
            for i in range(len(part)):
                self.wfile.write(part[i : i + 1])
                self.wfile.flush()
                time.sleep(0.1)
        drops = "drops" in self.faults or ("drops once" in self.faults and len(self.asked) == 1)
        if drops:
            part = part[: 0 if "drops" in self.faults else len(part) // 2]
        self.wfile.write(part)
        type(self).sent += len(part)
        if drops:
            self.close_connection = True


@contextmanager
def serving(folder, *faults, certificate=None):
    handler = type("Handler", (Server,), {"folder": folder, "faults": set(faults), "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}/model.gguf", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
