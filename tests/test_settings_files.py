"""Files that settings name and that turn into something else: nothing waits for them, the old content stays, and the operator is told."""
import json
import os
import signal
import time

import httpx
import pytest

from daemon import run, wait_until
from test_tenants import entry, write
from tls_clients import Authority, Revocations

FAKE = ("--device", "fake")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "files")


def become_fifo(path):
    path.unlink()
    os.mkfifo(path)


def become_endless(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def become_folder(path):
    path.unlink()
    path.mkdir()


def vanish(path):
    path.unlink()


def stale(server, headers=None):
    """Returns the settings whose files could not be read the last time."""
    text = httpx.get(server.admin + "/metrics", headers=headers).text
    found = [line.split() for line in text.splitlines() if line.startswith("millrace_file_stale{")]
    assert found
    return {name.split('"')[1] for name, value in found if float(value) == 1}


def get(server, path, name):
    return httpx.get(server.http + path, headers={"Authorization": f"Bearer key-{name}"}).status_code


@pytest.mark.parametrize("change, said", [(become_fifo, "it is a FIFO"), (become_endless, "it is a device"), (become_folder, "Is a directory"),
                                          (vanish, "No such file or directory")])
def test_keys_that_cannot_be_read_any_longer(start_server, tmp_path, change, said):
    keys = tmp_path / "keys.json"
    operator = entry("ops", scopes=["metrics", "admin"])
    bearer = {"Authorization": "Bearer key-ops"}
    write(keys, entry("a"), operator)
    server = start_server(*FAKE, "--keys", str(keys))
    assert stale(server, bearer) == set()
    change(keys)
    wait_until(lambda: stale(server, bearer) == {"keys"}, 10)
    log = server.log.read_text()
    assert f"the keys stay as they were, and one that was revoked since still opens: keys: cannot read {keys}: {said}" in log
    ready = httpx.get(server.http + "/readyz")
    assert ready.status_code == 200 and "keys" in ready.json()["detail"]
    assert str(tmp_path) not in ready.text, "a path of the host is not for clients"
    assert httpx.get(server.http + "/livez").json() == {"status": "ok"}
    assert get(server, "/v1/models", "a") == 200
    # A signal is heard at once, also the one that asks for a reading.
    server.signal(signal.SIGHUP)
    wait_until(lambda: "reloaded: " in server.log.read_text(), 10)
    if keys.is_dir():
        keys.rmdir()
    elif keys.exists():
        keys.unlink()
    write(keys, entry("b"), operator)
    wait_until(lambda: get(server, "/v1/models", "a") == 401, 10)
    wait_until(lambda: stale(server, bearer) == set(), 10)
    assert httpx.get(server.http + "/readyz").json() == {"status": "ok"}
    change(keys)
    wait_until(lambda: stale(server, bearer) == {"keys"}, 10)
    began = time.monotonic()
    server.signal()
    assert server.wait(20) == 0
    assert time.monotonic() - began < 8  # far less on an idle machine; a reading that waits lasts for ever


@pytest.mark.parametrize("which", ["certificate", "key", "authority", "revocations"])
def test_tls_files_that_cannot_be_read_any_longer(start_server, authority, tmp_path, which):
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "authority", "revocations")}
    for name, source in zip(files, (*authority.issue(f"stale-{which}"), authority.file)):
        files[name].write_bytes(source.read_bytes())
    Revocations(authority, files["revocations"]).write()
    server = start_server(*FAKE, "--ssl-certfile", str(files["certificate"]), "--ssl-keyfile", str(files["key"]),
                          "--ssl-ca-certs", str(files["authority"]), "--ssl-crl-file", str(files["revocations"]))
    assert stale(server) == set()
    become_fifo(files[which])
    server.signal(signal.SIGHUP)
    wait_until(lambda: stale(server) == {"ssl-certfile"}, 10)
    assert "the certificate stays as it was: ssl-" in server.log.read_text() and "it is a FIFO" in server.log.read_text()
    assert "ssl-certfile" in httpx.get(server.admin + "/readyz").json()["detail"]
    server.signal(signal.SIGHUP)
    server.signal()
    assert server.wait(20) == 0


def test_a_config_that_cannot_be_read_any_longer(start_server, tmp_path):
    config = tmp_path / "m.yaml"
    config.write_text("log: info\n")
    server = start_server(*FAKE, "--config", str(config))
    become_fifo(config)
    server.signal(signal.SIGHUP)
    wait_until(lambda: stale(server) == {"config"}, 10)
    assert "config" in httpx.get(server.http + "/readyz").json()["detail"]
    config.unlink()
    config.write_text("log: info,engine=debug\n")
    server.signal(signal.SIGHUP)
    wait_until(lambda: stale(server) == set(), 10)
    server.signal()
    assert server.wait(20) == 0


SETTINGS = [
    ("keys", []),
    ("ssl-certfile", []),
    ("ssl-keyfile", ["--ssl-certfile", "CERTIFICATE"]),
    ("ssl-ca-certs", ["--ssl-certfile", "CERTIFICATE", "--ssl-keyfile", "KEY"]),
    ("ssl-crl-file", ["--ssl-certfile", "CERTIFICATE", "--ssl-keyfile", "KEY", "--ssl-ca-certs", "AUTHORITY"]),
]


@pytest.mark.parametrize("setting, more", SETTINGS)
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_at_the_start_it_is_refused_by_its_settings_name(authority, tmp_path, setting, more, kind):
    path = tmp_path / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    certificate, key = authority.issue("start")
    names = {"CERTIFICATE": str(certificate), "KEY": str(key), "AUTHORITY": str(authority.file)}
    status, output = run(*FAKE, *(names.get(word, word) for word in more), f"--{setting}", str(path))
    assert status == 1 and f"{setting}: " in output, output
    assert ("it is a FIFO" if kind == "fifo" else "it is a device") in output, output


def test_a_folder_of_links_as_kubernetes_makes_it_is_followed(start_server, tmp_path):
    """file -> ..data/file, and ..data -> a folder, which a link of a new name replaces at once."""
    def publish(version, *entries):
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "keys.json").write_text(json.dumps({"keys": list(entries)}))
        (tmp_path / "..new").symlink_to(folder.name)
        (tmp_path / "..new").rename(tmp_path / "..data")

    publish(1, entry("a"))
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    server = start_server(*FAKE, "--keys", str(tmp_path / "keys.json"))
    assert get(server, "/v1/models", "a") == 200
    publish(2, entry("b"))
    wait_until(lambda: get(server, "/v1/models", "b") == 200, 10)
    assert get(server, "/v1/models", "a") == 401


# ---- Which names a listener answers to ----

NAMES = ("foreign.example", "ops.example", "scrape.example")


def answers(base, name, method="GET", path="/metrics"):
    return httpx.request(method, base + path, headers={"Host": name}).status_code


def test_each_listener_has_a_list_of_names_of_its_own(start_server, tmp_path):
    config = tmp_path / "m.yaml"
    config.write_text("allowed-hosts: '*'\nadmin-allowed-hosts: [ops.example]\nmetrics-allowed-hosts: [scrape.example]\n")
    server = start_server(*FAKE, "--config", str(config), "--metrics-host", "127.0.0.1", "--metrics-port", "0")
    bases = (server.http, server.admin, f"http://127.0.0.1:{server.ports['metrics']}")

    def seen():
        return [[answers(base, name) == 200 for name in NAMES] for base in bases]

    assert seen() == [[True, True, True], [False, True, False], [False, False, True]]
    refused = httpx.get(server.admin + "/metrics", headers={"Host": "foreign.example"})
    assert refused.status_code == 403 and "--admin-allowed-hosts" in refused.json()["error"]["message"]
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert answers(server.admin, name) == 200
    config.write_text("allowed-hosts: [ops.example]\nadmin-allowed-hosts: [foreign.example]\n")
    server.signal(signal.SIGHUP)
    wait_until(lambda: seen() == [[False, True, False], [True, False, False], [False, False, False]], 10)


def test_no_list_of_the_public_ports_opens_the_administration(start_server):
    server = start_server(*FAKE, "--allowed-hosts", "*")
    for path, method in (("/admin/drain", "POST"), ("/admin/status", "GET"), ("/log", "PUT"), ("/metrics", "GET")):
        assert answers(server.admin, "rebound.example", method, path) == 403, path
    refused = httpx.get(server.admin + "/metrics", headers={"Origin": "https://rebound.example"})
    assert refused.status_code == 403
    assert server.process.poll() is None


def test_the_administration_has_no_list_of_all_names():
    status, output = run(*FAKE, "--admin-allowed-hosts", "*")
    assert status == 1 and "--admin-allowed-hosts: got \"*\", expected comma-separated host names" in output
