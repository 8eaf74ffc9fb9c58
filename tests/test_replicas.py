"""Two replicas behind a proxy, with the files of deploy/replicas, restarted under load."""
import os
import pathlib
import random
import shutil
import socket
import subprocess

import pytest

from daemon import program

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "deploy" / "replicas" / "rolling_restart.sh"
LOADTEST = pathlib.Path(program()).resolve().parent / "millrace-loadtest"
PATH = os.environ["PATH"] + ":/usr/sbin"

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not LOADTEST.exists(), reason="millrace-loadtest was not built"),
    pytest.mark.skipif(not shutil.which("nginx", path=PATH), reason="nginx is not installed"),
]


def free_ports():
    """Returns a port P such that P to P + 2 and P + 100 to P + 102 are free."""
    while True:
        first = random.randrange(10000, 32000)
        try:
            for port in (first, first + 1, first + 2, first + 100, first + 101, first + 102):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


def restart(proxy, folder, *flags, **variables):
    """Runs the script with a dozen clients and a restart of each replica. Returns its status and output."""
    environment = {"PATH": PATH, "MILLRACED": program(), "LOADTEST": LOADTEST, "PORTS": free_ports(), "DETAILS": folder, "CLIENTS": 12,
                   "ROUNDS": 1, "TOKENS": 40, "STEP_US": 10000, "DELAY": 1, "SETTLE": 1} | variables
    done = subprocess.run([SCRIPT, proxy, *flags], env={name: str(value) for name, value in environment.items()}, capture_output=True,
                          text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_rolling_restart_fails_no_request_and_cuts_no_stream(tmp_path):
    status, output = restart("nginx", tmp_path)
    logs = "".join(f"{log.name}:\n{log.read_text()[-2000:]}\n" for log in tmp_path.glob("*.log"))
    assert status == 0, output + logs
    assert output.count("has drained") == 2
    for protocol in ("http", "grpc"):
        assert f"{protocol}: " in output


def test_the_script_notices_requests_that_fail(tmp_path):
    """Without --drain-delay a replica refuses requests before its balancer knows."""
    status, output = restart("nginx", tmp_path, DELAY=0)
    assert status == 1
    assert "a request failed, or a stream was cut" in output, output
    assert "HTTP 503" in output or "503" in output, output
