"""Utilities for tests of the daemon: its path and environment, starts that are meant to fail, streams, metrics, waiting."""
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import threading
import time

import httpx

LONG = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def device_flags():
    """Returns MILLRACED_ARGS, further flags of servers with the model: "--device cuda" lets it run on a GPU."""
    return shlex.split(os.environ.get("MILLRACED_ARGS", ""))


def on_a_gpu():
    """Returns whether the model runs on a GPU, according to MILLRACED_ARGS."""
    flags = device_flags()
    return "--device=cuda" in flags or ("--device", "cuda") in zip(flags, flags[1:])


def sanitized():
    """Returns whether the daemon runs under a sanitizer, which uses memory of its own."""
    return bool(os.environ.get("MILLRACE_SANITIZED"))


def program():
    return os.environ.get("MILLRACED", str(pathlib.Path(__file__).parent.parent / "build" / "millraced"))


def environment(more=None):
    """Returns the environment of a daemon without MILLRACE_*, which are settings to it but parameters of the tests here."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")} | (more or {})


def run(*flags, env=None):
    """Starts a daemon that is meant to fail. Returns its output and its exit status."""
    ports = {"MILLRACE_HTTP_PORT": "0", "MILLRACE_GRPC_PORT": "0", "MILLRACE_ADMIN_PORT": "0"}
    done = subprocess.run([program(), *flags], env=environment({**ports, **(env or {})}), capture_output=True, text=True,
                          timeout=60)
    return done.returncode, done.stderr


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def unread_by_peer(connection):
    """Returns how many bytes that were sent on a connection over IPv4 its other end, on this machine, has not read."""
    def name(address):
        return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"

    own, peer = name(connection.getsockname()), name(connection.getpeername())
    unread = 0
    for line in open("/proc/net/tcp"):
        ends, queues = line.split()[1:3], line.split()[4]
        if ends in ([own, peer], [peer, own]):
            sending, received = (int(size, 16) for size in queues.split(":"))
            unread += sending if ends[0] == own else received
    return unread


def metrics(server):
    """Returns the metrics by name; of a metric with several labels, the last one."""
    lines = httpx.get(server.admin + "/metrics").text.splitlines()
    return {line[:re.search(r"[{ ]", line).start()]: float(line.split()[-1]) for line in lines if line[0] != "#"}


def gpu_exposition():
    """Returns what a server on a GPU adds to its metrics, with the names that stand in its source."""
    source = (pathlib.Path(__file__).parent.parent / "engine" / "metrics" / "gpu_metrics.cc").read_text()
    return "".join(f'{name}{{gpu="0",uuid="GPU-0"}} 1\n' for name in re.findall(r'"(millrace_gpu_\w+)"', source))


def cancelled(server, *reasons):
    """Returns how many requests ended before their own end, for any of these reasons."""
    found = re.findall(r'^millrace_requests_cancelled_total{[^}]*reason="(\w+)"} (\S+)$', httpx.get(server.admin + "/metrics").text, re.M)
    return sum(float(value) for reason, value in found if reason in reasons)


class Stream:
    """A streamed completion that its own thread reads."""

    def __init__(self, server, body=LONG):
        self.lines = []
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.read, args=(server, body))
        self.thread.start()

    def read(self, server, body):
        try:
            with httpx.stream("POST", server.http + "/v1/completions", json=body, timeout=60) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    if line:
                        self.lines.append(line)
                        self.begun.set()
        except httpx.HTTPError:
            self.lines.append("broken")
        self.begun.set()

    def join(self):
        self.thread.join()
        return self.lines


def memory(server, name="VmRSS"):
    """Returns the bytes of memory that the process takes, or those of another line of its status."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read())[1]) << 10


def begin_peak(server):
    """Lets VmHWM, the most memory that the process has taken, begin anew. Returns what it takes now."""
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as clear:
        clear.write("5")
    return memory(server)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def status(server, path):
    return httpx.get(server.http + path, timeout=60).status_code
