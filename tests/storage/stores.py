"""An S3 store on loopback (moto's server), and a way to it on which things go wrong."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("moto")
pytest.importorskip("flask")

from moto.server import ThreadedMotoServer
from pyarrow import fs

KEY, SECRET = "AKIAEXAMPLEOFAKEY", "a-secret-that-must-not-be-written"
DENIED = (
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'  # as AWS says it
)


def environment(port: int) -> dict[str, str]:
    """What a process needs to reach a store on this port."""
    return {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


@contextmanager
def served():
    """The port of a store with a bucket `lab`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        open_store(port).create_dir("lab")
        yield port
    finally:
        server.stop()


def open_store(port: int) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1",
        allow_bucket_creation=True,
    )  # fmt: skip


def names(port: int, path: str) -> set[str]:
    """The objects below a path."""
    found = open_store(port).get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return {info.path.removeprefix(f"{path}/") for info in found if info.type == fs.FileType.File}


def contents(port: int, path: str) -> dict[str, bytes]:
    """What is in every object below a path, while nobody writes there."""
    store, found = open_store(port), {}
    for name in names(port, path):
        with store.open_input_stream(f"{path}/{name}") as file:
            found[name] = file.read()
    return found


class Proxy:
    """Passes connections on to a store; `how` says what else it does with requests that write an object.

    `deny`: answers that access is denied. `cut`: closes the connection in the midst of one. `slow`: keeps silent.
    The first `good` of them are passed on.
    """

    def __init__(self, port: int, how: str, good: int = 0):
        self.port, self.how, self.good = port, how, good
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.own_port = self.listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.port)) as store:
            threading.Thread(target=self._back, args=(store, client), daemon=True).start()
            while data := client.recv(2**16):
                if data.startswith((b"PUT ", b"POST ")):
                    self.good -= 1
                    if self.good < 0:
                        self._go_wrong(client, store, data)
                        return
                store.sendall(data)

    def _go_wrong(self, client: socket.socket, store: socket.socket, data: bytes) -> None:
        if self.how == "deny":
            head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: {len(DENIED)}\r\n"
            client.sendall(f"{head}Connection: close\r\n\r\n".encode() + DENIED)
        elif self.how == "cut":
            store.sendall(data[: len(data) // 2])
        else:
            threading.Event().wait(30)

    def _back(self, store: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := store.recv(2**16):
                client.sendall(data)
