"""HTTP, gRPC and the listener of metrics take the same addresses of both families."""
import socket

import httpx
import pytest

from daemon import run


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


def reaches(address, port):
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("host, v4, v6", [
    ("localhost", True, True),
    ("127.0.0.1", True, False),
    ("::1", False, True),
    ("::", True, True),
    ("0.0.0.0", True, False),
])
def test_every_listener_takes_the_addresses_of_its_host(start_server, host, v4, v6):
    # Administration is on loopback of IPv4, whatever the host.
    expected = {"http": (v4, v6), "grpc": (v4, v6), "metrics": (v4, v6), "admin": (True, False)}
    for _ in range(5):  # a port may be another program's on the family that the server does not listen on
        server = start_server("--device", "fake", "--host", host, "--insecure", "--metrics-host", host, "--metrics-port", "0")
        reached = {name: (reaches("127.0.0.1", server.ports[name]), reaches("::1", server.ports[name])) for name in expected}
        if reached == expected:
            break
    assert reached == expected
    for address in ["127.0.0.1"] * v4 + ["[::1]"] * v6:
        url = f"http://{address}:{server.ports['http']}"
        assert httpx.post(url + "/v1/completions", json={"prompt": "Hi", "max_tokens": 2}).status_code == 200
        assert httpx.get(f"http://{address}:{server.ports['metrics']}/metrics").status_code == 200
        assert httpx.get(url + "/v1/models", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(url + "/v1/models", headers={"Host": "[::1"}).status_code in (400, 403)


@pytest.mark.parametrize("setting", ["http-port", "grpc-port", "metrics-port"])
def test_a_port_that_is_taken_on_ipv6_is_named(setting):
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, output = run("--device", "fake", "--host", "::1", "--metrics-host", "::1", "--metrics-port", "0",
                           f"--{setting}", str(port))
    assert code == 1 and f"{setting}: cannot listen on [::1]:{port}: Address already in use" in output


@pytest.mark.parametrize("setting", ["host", "metrics-host"])
def test_an_address_of_another_machine_is_named(setting):
    code, output = run("--device", "fake", "--insecure", f"--{setting}", "2001:db8::1")
    assert code == 1 and f"{setting}: cannot listen on [2001:db8::1]:" in output
