"""A web server for tests of downloads, with the faults that servers have."""

import contextlib
import io
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Mirror:
    """A server of one file, or of ``files`` by path, and what it is asked.

    Faults: ``cut``, bytes after which a connection breaks; ``cuts``, how often; ``status``, an answer other than 200;
    ``hang``, seconds before the answer; ``ranges``, whether parts can be asked for; ``length``, whether it says how
    long the file is; ``claimed``, a length that is not the file's.
    """

    content: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    tag: str = '"one"'
    cut: int = 0
    cuts: int = 0
    status: int = 200
    hang: float = 0.0
    ranges: bool = True
    length: bool = True
    claimed: int | None = None
    location: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


def zipped(folder, top):
    """A zip file of the files in a folder, by their paths from another one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.write(path, path.relative_to(top))
    return packed.getvalue()


@contextlib.contextmanager
def serving(mirror):
    """Serve on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            mirror.asked.append((self.path, self.headers.get("Range", "")))
            time.sleep(mirror.hang)
            if mirror.location:
                self.send_response(302)
                self.send_header("Location", mirror.location)
                self.end_headers()
                mirror.location = "" if mirror.location.endswith("there.zip") else mirror.location
                return
            if mirror.status != 200:
                self.send_error(mirror.status)
                return
            start, body = 0, mirror.files.get(self.path, mirror.content)
            whole = len(body)
            wanted = self.headers.get("Range")
            if wanted and mirror.ranges and self.headers.get("If-Range") == mirror.tag:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                body = body[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
            self.send_header("Content-Type", "application/octet-stream")
            if mirror.length:
                self.send_header("Content-Length", str(len(body) if mirror.claimed is None else mirror.claimed))
            if mirror.tag:
                self.send_header("ETag", mirror.tag)
            self.end_headers()
            if mirror.cuts:
                mirror.cuts -= 1
                body = body[: mirror.cut]
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    mirror.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
