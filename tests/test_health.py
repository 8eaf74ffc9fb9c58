"""`millraced health`, which containers run as their health check; and the probes of a server that still loads."""
import contextlib
import http.server
import socket
import subprocess
import threading

import httpx
import pytest

from daemon import Stream, environment, metrics, program, wait_until


def health(port, *flags, env=None):
    """Returns the exit status and the output."""
    done = subprocess.run([program(), "health", "--http-port", str(port), *flags], env=environment(env), capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


@contextlib.contextmanager
def listener(answer=None):
    """Yields the port of a listener that answers each connection with these bytes, or never."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    if answer is not None:
                        connections[-1].recv(1000)
                        connections[-1].sendall(answer)
                        connections[-1].shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in connections:
            connection.close()


def test_a_server_that_serves_is_well(fake_server):
    assert health(fake_server.ports["http"]) == (0, "")
    assert health(fake_server.ports["http"], "--probe", "live") == (0, "")
    assert health(fake_server.ports["http"], "--host", "localhost") == (0, "")


def test_the_servers_own_environment_says_where_to_ask(start_server):
    """A container's health check has the server's environment, which may set what means nothing to it."""
    server = start_server("--device", "fake", "--host", "0.0.0.0", "--api-key", "secret")
    env = {"MILLRACE_HOST": "0.0.0.0", "MILLRACE_API_KEY": "secret", "MILLRACE_DEVICE": "fake", "MILLRACE_DRAIN_TIMEOUT": "5"}
    assert health(server.ports["http"], env=env) == (0, "")


def test_a_loopback_without_ipv6_is_asked_over_ipv4():
    with listener(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as port:
        assert health(port, "--host", "::") == (0, "")
        assert health(port, "--host", "::1")[0] == 1


def test_a_server_that_drains_is_live_and_not_ready(start_server):
    server = start_server("--device", "fake")
    stream = Stream(server)
    stream.begun.wait()
    server.signal()
    wait_until(lambda: metrics(server)["millrace_ready"] == 0)
    port = server.ports["http"]
    assert health(port, "--probe=live") == (0, "")
    status, output = health(port)
    assert status == 1
    assert output.startswith(f"millraced health: http://127.0.0.1:{port}/readyz: answered 503: ")
    assert "the server is shutting down" in output
    stream.join()


def test_a_server_whose_device_hangs_is_not_live(start_server):
    server = start_server("--device", "fake", "--faults", "fake.hang=100000@5", "--stall-timeout", "100ms")
    stream = Stream(server)
    wait_until(lambda: health(server.ports["http"], "--probe=live")[0] == 1)
    assert "no step finishes" in health(server.ports["http"], "--probe=live")[1]
    server.stop()
    stream.join()


def test_where_nothing_answers_it_says_so():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert health(port) == (1, f"millraced health: http://127.0.0.1:{port}/readyz: Connection refused\n")
    with listener() as port:
        assert health(port, "--probe-timeout", "200ms") == (1, f"millraced health: http://127.0.0.1:{port}/readyz: no answer in time\n")


@pytest.mark.parametrize("answer, said", [
    (b"", "what answered does not speak HTTP"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "what answered does not speak HTTP"),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "answered 404: no"),
    (b"HTTP/1.1 5", "answered 5: "),
    (b"HTTP/1.1 500 \x1b[31m\r\n\r\n\x1b[31m" + b"x" * 100_000, r"answered 500: \x1b[31mxxx"),
])
def test_what_is_no_server_of_ours_is_not_well(answer, said):
    with listener(answer) as port:
        status, output = health(port)
        assert status == 1
        assert said in output
        assert len(output) < 500 and output.rstrip("\n").isprintable()


class Silent(http.server.BaseHTTPRequestHandler):
    """A hub that takes requests and does not answer before `release` is set."""

    release = threading.Event()

    def do_GET(self):
        Silent.release.wait(60)
        self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


def test_a_server_that_loads_is_live_and_not_ready(tmp_path):
    """The ports are open before the model has loaded: a slow download is no reason to kill a pod."""
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)}
    command = [program(), "--model", "some/model", "--http-port", str(port), "--grpc-port", "0", "--admin-port", "0"]
    server = subprocess.Popen(command, env=environment(env), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: health(port, "--probe=live")[0] == 0)
        status, output = health(port)
        assert status == 1 and "the server is not ready yet" in output
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 503
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "x"}).headers["retry-after"]
    finally:
        Silent.release.set()
        server.terminate()
        server.wait(60)
        hub.shutdown()
        hub.server_close()
