"""Runs the real millraced for the black-box tests, which use its endpoints as a user would.

The environment names the program (MILLRACED), the default model's file (MILLRACE_MODEL) and the folder of
all-MiniLM-L6-v2 (MILLRACE_MINILM); `make test` sets all three. Tests that need a model are marked `model`. MILLRACED_ARGS are
further flags of the server that runs the default model: with MILLRACED_ARGS="--device cuda" the same tests run on a GPU.
"""
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

import tiny_qwen3
from daemon import device_flags, environment, on_a_gpu, program
from tls_clients import Authority, Revocations, flags as tls_flags

ROOT = pathlib.Path(__file__).parent.parent
START_TIMEOUT = 120  # seconds; a start takes a fraction of one, but sanitizers and busy machines are slow


# Tests that need a GPU are left out of a run without one.
collect_ignore = [] if on_a_gpu() else ["test_gpu.py"]


def flags_of_the_processor():
    """Returns the processor's feature flags, for which packages are compiled."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("flags")), "").encode()


def pytest_configure(config):
    config.addinivalue_line("markers", "model: needs the default model's file, or all-MiniLM-L6-v2")
    config.addinivalue_line("markers", "deploy: checks what is deployed, or the tree, which needs no run under the sanitizers")
    config.addinivalue_line("markers", "serial: sends one request after the other, which needs no run under ThreadSanitizer")
    config.addinivalue_line("markers", "torch: needs libmillrace_torch.so beside the program (cmake/Torch.cmake)")


class Server:
    """A running millraced on free ports of 127.0.0.1.

    before: a program that becomes millraced, with its arguments, as prlimit. log: where stderr goes.
    """

    def __init__(self, folder, *flags, env=None, before=(), log=None):
        self.ready_file = folder / "ready.json"
        self.log = log or folder / "log.txt"
        self.ready_file.unlink(missing_ok=True)
        command = [*before, program(), "--http-port", "0", "--grpc-port", "0", "--admin-port", "0",
                   "--ready-file", str(self.ready_file), *flags]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment(env))
        deadline = time.monotonic() + START_TIMEOUT
        while not self.ready_file.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"millraced ended with {self.process.returncode}:\n{self.log.read_text()}")
            if time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"millraced was not ready in {START_TIMEOUT} s:\n{self.log.read_text()}")
            time.sleep(0.01)
        self.ports = json.loads(self.ready_file.read_text())
        self.http = f"http://127.0.0.1:{self.ports['http']}"
        self.admin = f"http://127.0.0.1:{self.ports['admin']}"
        self.grpc = f"127.0.0.1:{self.ports['grpc']}"

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=60):
        """Returns the exit status."""
        return self.process.wait(timeout)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start_server(tmp_path_factory):
    """Returns start_server(*flags, env=None), which starts a server for this test alone."""
    servers = []

    def start(*flags, env=None):
        servers.append(Server(tmp_path_factory.mktemp("server"), *flags, env=env))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def make_package():
    """Returns make_package(name), which compiles tests/packages/NAME.py with the script that users call, and caches the package.

    folder: of the model that it reads.
    """

    def make(name, folder=None):
        source = ROOT / "tests" / "packages" / f"{name}.py"
        script = ROOT / "scripts" / "export_package.sh"
        digest = hashlib.sha256(flags_of_the_processor())
        for file in (*sorted(folder.iterdir() if folder else []), source, script.with_suffix(".py"), ROOT / "scripts" / "pypi" / "package.txt"):
            digest.update(file.read_bytes())
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "millrace"
        package = cache / f"package-{name}-{digest.hexdigest()[:12]}.pt2"
        if not package.exists():
            made = package.with_suffix(f".{os.getpid()}.pt2")
            done = subprocess.run([script, source, made], capture_output=True, text=True,
                                  env={**os.environ, "FOLDER": str(folder)})
            assert done.returncode == 0, done.stderr
            made.rename(package)
        return package

    return make


@pytest.fixture(scope="session")
def fake_server(tmp_path_factory):
    """A shared server with the fake executor. It must still be healthy after each test."""
    server = Server(tmp_path_factory.mktemp("fake"), "--device", "fake", "--fake-step-us", "1000",
                    "--fake-token-us", "10")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def secured_server(tmp_path_factory):
    """A shared server with the fake executor, tenants (the key of tenant a is key-of-a), TLS and a list of revoked certificates. At
    ports["metrics"] it has metrics and probes, plain and without a key."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder, "ours")
    Revocations(authority, folder / "revoked")
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "a", "sha256": hashlib.sha256(b"key-of-a").hexdigest()}]}))
    server = Server(folder, "--device", "fake", "--keys", str(keys), *tls_flags(authority.issue("server")), "--ssl-ca-certs", str(authority.file),
                    "--ssl-cert-reqs", "1", "--ssl-crl-file", str(folder / "revoked"), "--metrics-host", "127.0.0.1", "--metrics-port", "0")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory):
    """A server of a tiny random model whose tokens are bytes, shared by the tests of a module."""
    server = Server(tmp_path_factory.mktemp("tiny_server"), "--model", str(tiny_qwen3.write(tmp_path_factory.mktemp("tiny") / "tiny", modules=False)))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def model_server(tmp_path_factory):
    """A shared server with the default model, on the CPU unless MILLRACED_ARGS says otherwise."""
    server = Server(tmp_path_factory.mktemp("model"), "--model", os.environ["MILLRACE_MODEL"],
                    *device_flags())
    yield server
    server.stop()


@pytest.fixture(scope="session")
def embedding_server(tmp_path_factory):
    """A shared server with all-MiniLM-L6-v2."""
    server = Server(tmp_path_factory.mktemp("embedding"), "--model", os.environ["MILLRACE_MINILM"])
    yield server
    server.stop()
