"""Tests of models named at the hub: downloads, the cache and faults, against a hub of our own."""
import contextlib
import copy
import gzip
import hashlib
import json
import os
import pathlib
import pty
import random
import re
import select
import signal
import socket
import subprocess
import threading

import httpx
import pytest

from daemon import environment, program, run, wait_until
from hub_server import Fault, Hub, git_blob
from test_folder import model_files

NAME = "org/tiny.model"
FLAGS = ("--model", NAME, "--kv-cache-memory", "16MiB")
SMALL = "config.json"
WEIGHTS = "model-1-of-2.safetensors"
VOCAB = 640  # 164 kB of embeddings: large enough for the hub's storage


def byte_tokenizer():
    """Returns a vocabulary with a token for each byte, in GPT-2's spelling, and an end token."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({
        "version": "1.0", "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "added_tokens": [{"id": 256, "content": "<end>", "special": True}],
        "model": {"type": "BPE", "vocab": {other.get(b, chr(b)): b for b in range(256)}, "merges": []},
    }).encode()


FILES = {**model_files(VOCAB), "tokenizer.json": byte_tokenizer(), "README.md": b"not wanted",
         "tokenizer_config.json": b'{"eos_token": "<end>", "chat_template": "{{ messages[0].content }}"}'}
WANTED = {name: data for name, data in FILES.items() if name != "README.md"}


@pytest.fixture
def hub():
    hub = Hub()
    hub.add(NAME, FILES)
    yield hub
    hub.stop()


def folder_of(home):
    return home / "hub" / "models--org--tiny.model"


def fails(hub, home, *flags, **env):
    """Returns the output of a start that is meant to fail."""
    code, log = run(*FLAGS, *flags, env=hub.env(home, **env))
    assert code == 1, log
    return log


def answer(server):
    body = {"model": NAME, "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    return httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]


def fetched(home):
    """Checks that the snapshot's files equal the hub's and that nothing is left over. Returns them."""
    folder = folder_of(home)
    commit = (folder / "refs" / "main").read_text()
    snapshot = folder / "snapshots" / commit
    for path in snapshot.iterdir():
        assert path.is_symlink() and not os.path.isabs(os.readlink(path)) and path.resolve().parent == folder / "blobs"
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == WANTED
    assert len(list((folder / "blobs").iterdir())) == len(WANTED)
    return snapshot


def test_it_is_fetched_once_and_served_from_the_cache(hub, start_server, tmp_path):
    env = hub.env(tmp_path)
    server = start_server(*FLAGS, "--log", "hub=debug", env=env)
    assert f"debug hub GET {hub.url}/api/models/{NAME}/revision/main 200" in server.log.read_text()
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["id"] == NAME
    assert httpx.get(server.http + "/v1/models/org%2Ftiny.model").status_code == 200
    first = answer(server)
    snapshot = fetched(tmp_path)
    assert (snapshot / SMALL).resolve().name == git_blob(FILES[SMALL])
    assert not hub.requests("GET", "README") and not hub.requests("HEAD", "README")

    hub.seen.clear()
    assert answer(start_server(*FLAGS, env=env)) == first
    assert [path for _, _, path, _ in hub.seen] == [f"/api/models/{NAME}/revision/main"]
    hub.seen.clear()
    assert answer(start_server(*FLAGS, "--offline", env=env)) == first
    assert answer(start_server(*FLAGS, env={**env, "HF_HUB_OFFLINE": "1"})) == first
    assert answer(start_server(*FLAGS, "--offline", env={**env, "HF_HOME": "", "HF_HUB_CACHE": str(tmp_path / "hub")})) == first
    assert not hub.seen
    hub.stop()
    server = start_server(*FLAGS, env=env)
    assert answer(server) == first
    assert "using the cached 111111111111" in server.log.read_text()


def test_a_new_commit_brings_what_is_new_alone(hub, start_server, tmp_path):
    start_server(*FLAGS, env=hub.env(tmp_path)).stop()
    hub.add(NAME, {**FILES, "generation_config.json": b'{"eos_token_id": 7}'}, commit="2" * 40)
    hub.seen.clear()
    start_server(*FLAGS, env=hub.env(tmp_path)).stop()
    assert (folder_of(tmp_path) / "refs" / "main").read_text() == "2" * 40
    assert [path for _, method, path, _ in hub.seen if method == "GET" and "/resolve/" in path] == [
        f"/{NAME}/resolve/{'2' * 40}/generation_config.json"]
    # The older snapshot is still available by its commit.
    start_server(*FLAGS, "--offline", "--revision", "1" * 40, env=hub.env(tmp_path))


def fill(home, names):
    """Puts files into the cache as another tool does that has a use for these alone."""
    folder = folder_of(home)
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text("1" * 40)
    snapshot = folder / "snapshots" / ("1" * 40)
    for name in names:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(ENCODER[name])


ENCODER = {**{name: b"{}" for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json")},
           "model.safetensors": b"weights", "modules.json": b'[{"path": "1_Pooling"}]'}


def test_a_cache_that_another_tool_has_filled_in_part(hub, tmp_path):
    """The hub is asked for what is missing; without it, what is missing is named, or may be missing."""
    hub.add(NAME, ENCODER)
    env = hub.env(tmp_path)
    fill(tmp_path, ("config.json", "tokenizer.json", "tokenizer_config.json"))  # AutoTokenizer
    code, log = run("get", NAME, "--offline", env=env)
    assert code == 1 and "has no model.safetensors and no model.safetensors.index.json, and the hub is not contacted" in log
    hub.faults.append(Fault("GET hub/api", times=5, status=503, headers={"Retry-After": "0"}))
    code, log = run("get", NAME, env=env)
    assert code == 1 and f"the hub fails (HTTP 503); the cache, {tmp_path}/hub, has no model.safetensors" in log and "(4 of 4)" in log
    fill(tmp_path, ("model.safetensors",))  # AutoModel
    code, log = run("get", NAME, "--offline", env=env)
    assert code == 0 and "whether the model has modules.json, " in log and f"`millraced get {NAME}`" in log
    assert "1_Pooling/config.json" in log and "tokenizer.json" not in log
    fill(tmp_path, ("modules.json",))
    code, log = run("get", NAME, "--offline", env=env)
    assert code == 1 and "has no 1_Pooling/config.json, and the hub is not contacted" in log
    assert run("get", NAME, env=env)[0] == 0
    assert [path for _, method, path, _ in hub.seen if method == "GET" and "/resolve/" in path] == [
        f"/{NAME}/resolve/{'1' * 40}/1_Pooling/config.json"]
    # What the hub does not have is known from then on, to Python's huggingface_hub as well.
    code, log = run("get", NAME, "--offline", env=env)
    assert code == 0 and "warning" not in log
    assert (folder_of(tmp_path) / ".no_exist" / ("1" * 40) / "chat_template.jinja").exists()


def test_a_revision_may_be_a_branch_with_a_slash(hub, start_server, tmp_path):
    hub.models[NAME]["refs"] = ["refs/pr/1"]
    start_server(*FLAGS, "--revision", "refs/pr/1", env=hub.env(tmp_path)).stop()
    start_server(*FLAGS, "--revision", "refs/pr/1", "--offline", env=hub.env(tmp_path))
    assert f"the cache, {tmp_path}/hub, has no revision main" in fails(hub, tmp_path, "--offline")


def test_the_tokenizer_has_a_revision_of_its_own(hub, start_server, tmp_path):
    hub.models[NAME]["refs"] = ["v1"]
    hub.add("org/text", {name: FILES[name] for name in ("tokenizer.json", "tokenizer_config.json")}, commit="2" * 40)
    hub.models["org/text"]["refs"] = ["v2"]
    flags = [*FLAGS, "--revision", "v1", "--tokenizer", "org/text"]
    for more, revision in [([], "main"), (["--tokenizer-revision", "v2"], "v2")]:
        hub.seen.clear()
        start_server(*flags, *more, env=hub.env(tmp_path)).stop()
        assert [path for _, _, path, _ in hub.seen if "/revision/" in path] == [
            f"/api/models/{NAME}/revision/v1", f"/api/models/org/text/revision/{revision}"]


def test_the_token_stays_with_the_hub(hub, start_server, tmp_path):
    hub.private.add(NAME)
    log = fails(hub, tmp_path)
    assert f"{NAME} is no file or folder here" in log and "for a private one set HF_TOKEN" in log
    assert "the token of HF_TOKEN may read it" in fails(hub, tmp_path, HF_TOKEN="hf_bad")
    (tmp_path / "token").write_text("hf_good\n")
    server = start_server(*FLAGS, env=hub.env(tmp_path))
    assert hub.requests("GET", "", "storage")
    assert not [headers for _, _, _, headers in hub.requests("GET", "", "storage") if "Authorization" in headers]
    assert "hf_good" not in server.log.read_text()


@pytest.mark.parametrize("fault, said", [
    (Fault("GET hub/api", status=403, headers={"X-Error-Code": "GatedRepo"}), "is gated: ask for access at "),
    (Fault("GET hub/api", status=403), "HF_TOKEN must be a token that may read the model"),
    (Fault("GET hub/api", status=404), "there is no such model, or it is private"),
    (Fault("GET hub/api", times=99, status=429, headers={"Retry-After": "0"}), "the hub limits requests"),
    (Fault("GET hub/api", status=302, headers={"Location": "ftp://example.com/"}), "which is no URL of http"),
    (Fault("GET hub/api", times=99, status=302, headers={"Location": "/api/again"}), "redirects more than 10 times"),
    (Fault("GET hub/api", body=b"<html>Log in to the Wi-Fi</html>"), "not a hub's: check HF_ENDPOINT"),
    (Fault("GET hub/api", body=b'{"sha": "../../x", "siblings": []}'), "sha: is no commit"),
    (Fault("GET hub/api", body=b'{"sha": "%s", "siblings": 1}' % (b"1" * 40)), "siblings: must be a list"),
    (Fault("GET hub/api", body=b" " * (33 << 20)), "more than 33554432 bytes"),
    (Fault("HEAD hub/", times=99, headers={"ETag": '"../../x"', "X-Linked-Etag": '"../../x"'}), "without an ETag"),
    (Fault("HEAD hub/", times=99, headers={"X-Repo-Commit": "3" * 40}), "comes from another commit"),
    (Fault(WEIGHTS, times=99, headers={"X-Linked-Size": str(1 << 42)}), "TiB more on the disk of"),
    (Fault("index.json", headers={"X-Linked-Size": str(1 << 42)}), "index.json has 4398046511104 bytes, at most"),
    (Fault("GET storage/", times=99, headers={"Content-Range": "bytes 1-9/10"}), 'Content-Range is "bytes 1-9/10": check HF_ENDPOINT'),
    (Fault("HEAD hub/", times=99, status=404, headers={"X-Error-Code": "EntryNotFound"}), "a file of the model is missing"),
])
def test_an_error_says_what_to_do(hub, tmp_path, fault, said):
    hub.faults.append(copy.copy(fault))
    assert said in fails(hub, tmp_path)


def test_a_commit_is_that_commit(hub, tmp_path):
    """A pinned commit must not resolve to another one."""
    hub.models[NAME]["refs"] = ["3" * 40]
    assert f"sha: is {'1' * 40}, but the requested commit is {'3' * 40}" in fails(hub, tmp_path, "--revision", "3" * 40)
    assert not folder_of(tmp_path).exists()


def test_an_endpoint_without_a_scheme_is_refused(hub, tmp_path):
    """The endpoint would be taken for http and receive the token."""
    endpoint = hub.url.removeprefix("http://")
    assert f"HF_ENDPOINT is {endpoint}; allowed: a URL of https" in fails(hub, tmp_path, HF_ENDPOINT=endpoint, HF_TOKEN="hf_good")
    assert not hub.seen


def test_names_that_lead_elsewhere_are_refused(hub, tmp_path):
    assert 'has no revision "nowhere": name a branch' in fails(hub, tmp_path, "--revision", "nowhere")
    assert "is no name of a branch" in fails(hub, tmp_path, "--revision", "../main")
    index = {"weight_map": {"a": "../../../../x.safetensors"}}
    hub.add(NAME, {**FILES, "../x": b"x", "/etc/x": b"x", "model.safetensors.index.json": json.dumps(index).encode()})
    assert "names ../../../../x.safetensors, which is no file of weights" in fails(hub, tmp_path)
    assert not [path for path in tmp_path.rglob("x*")]


def test_a_file_that_is_not_there_is_asked_for_at_the_hub_only_by_a_hubs_name(hub, tmp_path):
    for name in ("./nothing", "/nothing/here", "nothing", "some/file.gguf"):
        code, log = run("--model", name, env=hub.env(tmp_path))
        assert code == 1 and not hub.seen


def test_disk_space_is_checked_before_anything_is_written(hub, tmp_path):
    hub.faults.append(Fault(WEIGHTS, times=99, headers={"X-Linked-Size": str(1 << 42)}))
    assert "TiB more on the disk of" in fails(hub, tmp_path)
    assert WEIGHTS in FILES and not list(tmp_path.rglob("*.incomplete"))


@pytest.mark.parametrize("size", [str((1 << 44) + 1), str(1 << 63), "9" * 40, "-1", "many"])
def test_a_size_that_no_file_has_is_refused(hub, tmp_path, size):
    hub.faults.append(Fault(WEIGHTS, times=99, headers={"X-Linked-Size": size}))
    assert f"{WEIGHTS} comes without an ETag or a size as a hub gives them" in fails(hub, tmp_path)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_list_without_end_is_broken_off(hub, tmp_path):
    hub.faults.append(Fault("GET hub/api/", times=99, body=b'{"siblings": [' + b" " * (40 << 20)))
    assert "the list of files has more than 33554432 bytes" in fails(hub, tmp_path)


def test_a_compressed_list_is_not_unpacked(hub, tmp_path):
    """Nothing is asked for compressed, so that what comes so is no list."""
    hub.faults.append(Fault("GET hub/api/", times=99, body=gzip.compress(bytes(1 << 30), 1), headers={"Content-Encoding": "gzip"}))
    assert "the response is not a hub's" in fails(hub, tmp_path)
    assert all(headers.get("Accept-Encoding") == "identity" for _, _, _, headers in hub.seen)


def test_redirects_with_large_bodies_end(hub, tmp_path):
    hub.faults.append(Fault("GET hub/api/", times=99, status=302, headers={"Location": f"/api/models/{NAME}/revision/main"}, body=bytes(16 << 20)))
    assert "redirects more than 10 times" in fails(hub, tmp_path)
    assert len(hub.requests("GET", "/api/models/")) <= 11


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_token_in_something_that_is_no_file_is_not_waited_for(hub, start_server, tmp_path, kind):
    odd = tmp_path / "odd"
    if kind == "fifo":
        os.mkfifo(odd)
    else:
        odd.symlink_to("/dev/zero")
    server = start_server(*FLAGS, env=hub.env(tmp_path, HF_TOKEN_PATH=str(odd)))
    assert f"no token is sent: cannot read {odd}: it is a " in server.log.read_text()
    assert answer(server)


def test_a_revision_that_is_no_file_is_unknown(hub, tmp_path):
    refs = folder_of(tmp_path) / "refs"
    refs.mkdir(parents=True)
    os.mkfifo(refs / "main")
    assert "has no revision main" in fails(hub, tmp_path, HF_HUB_OFFLINE="1")


def test_an_invalid_token_is_named_and_not_shown(hub, tmp_path):
    log = fails(hub, tmp_path, HF_TOKEN="hf_good secret")
    assert "HF_TOKEN holds an invalid token" in log and "secret" not in log
    (tmp_path / "token").write_text("hf_good secret\n")
    log = fails(hub, tmp_path)
    assert f"{tmp_path}/token holds an invalid token" in log and "secret" not in log
    assert not hub.seen


@pytest.mark.parametrize("token", [" hf_good ", "hf_good\n", "\thf_good\r\n"])
def test_white_space_around_the_token_is_not_sent(hub, tmp_path, token):
    hub.private.add(NAME)
    code, log = run("get", NAME, env=hub.env(tmp_path, HF_TOKEN=token))
    assert code == 0, log


def test_a_blank_token_is_none(hub, tmp_path):
    hub.private.add(NAME)
    (tmp_path / "token").write_text("hf_good\n")
    code, log = run("get", NAME, env=hub.env(tmp_path, HF_TOKEN=" \n"))
    assert code == 0, log


def test_without_ranges_an_error_is_still_told(hub, tmp_path):
    """A part breaks off, the whole file is sent instead of its remainder, and then the storage is unavailable."""
    storage = f"GET storage/{NAME}/{hashlib.sha256(FILES[WEIGHTS]).hexdigest()}"
    hub.faults += [Fault(storage, cut=1000, ranges=False), Fault(storage, ranges=False),
                   Fault(storage, times=99, status=503, headers={"Retry-After": "0"})]
    assert "the hub fails (HTTP 503)" in fails(hub, tmp_path)


@pytest.mark.parametrize("fault", [
    Fault("GET hub/api", times=2, status=429, headers={"Retry-After": "0"}),
    Fault("HEAD hub/", times=2, status=503, headers={"Retry-After": "0"}),
    Fault("GET storage/", times=1, status=500),
    Fault("GET storage/", times=1, status=403),  # an expired link
    Fault("GET storage/", times=1, cut=1000),
    Fault("GET hub/", times=1, cut=0),
    Fault("GET storage/", times=1, wrong=True),
    Fault("GET storage/", times=9, ranges=False),
    Fault("GET hub/org", times=1, wrong=True),
], ids=lambda fault: f"{fault.match} {fault.status or 'cut' * (fault.cut is not None) or fault.wrong and 'wrong' or 'no ranges'}")
def test_what_passes_is_gone_through(hub, start_server, tmp_path, fault):
    left = copy.copy(fault)
    hub.faults.append(left)
    start_server(*FLAGS, env=hub.env(tmp_path))
    fetched(tmp_path)
    assert left.times < fault.times


def test_a_pinned_commit_is_asked_for_again_too(hub, start_server, tmp_path):
    left = Fault("GET hub/api", times=1, status=503, headers={"Retry-After": "0"})
    hub.faults.append(left)
    start_server(*FLAGS, "--revision", "1" * 40, env=hub.env(tmp_path))
    assert left.times == 0  # it was met


def test_parts_of_a_file_are_fetched_at_the_same_time(hub, tmp_path):
    data = random.Random(1).randbytes(17 << 20)  # two parts
    hub.add(NAME, {**FILES, "model.safetensors": data})
    del hub.models[NAME]["files"]["model.safetensors.index.json"]
    together = threading.Barrier(2, timeout=60)
    hub.faults.append(Fault(f"GET storage/{NAME}/{hashlib.sha256(data).hexdigest()}", times=2, together=together))
    assert "model.safetensors" in fails(hub, tmp_path)  # of noise
    assert not together.broken and len(hub.requests("GET", "", "storage")) == 2
    (snapshot,) = (folder_of(tmp_path) / "snapshots").iterdir()
    assert (snapshot / "model.safetensors").read_bytes() == data


def test_it_is_fetched_through_a_proxy(hub, start_server, tmp_path):
    named = {"HF_ENDPOINT": "http://hub.invalid", "http_proxy": hub.url}
    start_server(*FLAGS, env=hub.env(tmp_path, no_proxy="", **named))
    fetched(tmp_path)
    storage = hub.storage.removeprefix("http://")
    assert hub.proxied == {"hub.invalid", storage}
    hub.proxied.clear()
    start_server(*FLAGS, env=hub.env(tmp_path / "direct", no_proxy="127.0.0.1", **named))
    assert hub.proxied == {"hub.invalid"}


def test_a_bar_shows_on_a_terminal_how_far_it_is(hub, tmp_path):
    hub.faults.append(Fault("GET storage/", times=99, slow=100_000))
    terminal, stderr = pty.openpty()
    process = start(hub, tmp_path, stderr)
    shown = b""
    wanted = re.compile(rb"\r\x1b\[K\[(#*)-*\] fetching org/tiny\.model: +([\d.]+) % of [\d.]+ KiB, [\d.]+ \w+/s")
    while len(bars := wanted.findall(shown)) < 4 and process.poll() is None and select.select([terminal], [], [], 30)[0]:
        shown += os.read(terminal, 4096)
    process.kill()
    process.wait()
    for file in (terminal, stderr):
        os.close(file)
    shares = [float(share) for _, share in bars]
    assert len(shares) >= 4 and shares == sorted(shares) and shares[0] < shares[-1]
    # The displayed share is rounded to a thousandth.
    assert all(int(24 * (float(share) - 0.05) / 100) <= len(full) <= int(24 * (float(share) + 0.05) / 100) for full, share in bars), bars


def test_a_cut_connection_is_gone_on_from(hub, start_server, tmp_path):
    digest = hashlib.sha256(FILES[WEIGHTS]).hexdigest()
    hub.faults.append(Fault(f"GET storage/{NAME}/{digest}", cut=100_000))
    start_server(*FLAGS, env=hub.env(tmp_path))
    ranges = [headers["Range"] for _, _, _, headers in hub.requests("GET", digest)]
    assert f"bytes=100000-{len(FILES[WEIGHTS]) - 1}" in ranges
    fetched(tmp_path)


def test_a_wrong_checksum_stays_out_of_the_cache(hub, tmp_path):
    hub.faults.append(Fault("GET storage/", times=99, wrong=True))
    log = fails(hub, tmp_path)
    assert "fetched twice and discarded" in log and "the checksum is" in log
    assert not (folder_of(tmp_path) / "refs" / "main").exists()
    assert not [path for path in (folder_of(tmp_path) / "blobs").iterdir() if len(path.name) == 64]
    hub.faults.clear()
    hub.faults.append(Fault("GET storage/", times=99, body=bytes(10 << 20), ranges=False))
    assert "has more bytes than the hub stated" in fails(hub, tmp_path)


def test_a_hub_that_cannot_be_reached_is_named(hub, tmp_path):
    hub.stop()
    with socket.socket() as held:  # so that no other test's server takes the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", int(hub.url.rsplit(":", 1)[1])))
        log = fails(hub, tmp_path)
        assert f"hub: {NAME}: {hub.url}: " in log and "(4 of 4)" in log, log
        assert "and the hub is not contacted" in fails(hub, tmp_path, "--offline")


def start(hub, home, stderr=subprocess.PIPE, admin_port=0):
    flags = [*FLAGS, "--http-port", "0", "--grpc-port", "0", "--admin-port", str(admin_port), "--ready-file", str(home / "ready")]
    return subprocess.Popen([program(), *flags], env=environment(hub.env(home)), stderr=stderr)


def test_what_a_killed_process_fetched_is_gone_on_from(hub, start_server, tmp_path):
    data = random.Random(1).randbytes(30 << 20)  # two parts
    hub.add(NAME, {**FILES, "model.safetensors": data})
    del hub.models[NAME]["files"]["model.safetensors.index.json"]
    slow = Fault("GET storage/", times=99, slow=40 << 20)
    hub.faults.append(slow)
    process = start(hub, tmp_path)
    begun = folder_of(tmp_path) / "blobs" / f"{hashlib.sha256(data).hexdigest()}.millrace.incomplete"
    wait_until(lambda: begun.exists() and begun.stat().st_blocks > 24_000)
    process.kill()
    process.communicate()
    hub.faults.clear()
    hub.seen.clear()
    assert "model.safetensors" in fails(hub, tmp_path)  # of noise
    ranges = [headers["Range"] for _, _, _, headers in hub.requests("GET", "", "storage")]
    begins = [int(asked[6:].split("-")[0]) for asked in ranges]
    assert any(begin % (16 << 20) for begin in begins)
    (snapshot,) = (folder_of(tmp_path) / "snapshots").iterdir()
    assert (snapshot / "model.safetensors").read_bytes() == data


def test_a_signal_ends_a_fetch(hub, tmp_path):
    hub.faults.append(Fault("GET storage/", times=99, slow=20_000))
    process = start(hub, tmp_path)
    wait_until(lambda: hub.requests("GET", "", "storage"))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0 and b"stopped" in log


def test_readyz_says_how_far_a_fetch_is(hub, tmp_path):
    hub.faults.append(Fault("GET storage/", times=99, slow=20_000))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start(hub, tmp_path, admin_port=port)

    def said():
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/readyz").text
        return ""

    wait_until(lambda: re.search(f"fetching {NAME}: [0-9]+ % of", said()))
    process.terminate()
    process.communicate(timeout=30)


def test_variables_in_the_caches_path_are_expanded(hub, start_server, tmp_path):
    """As huggingface_hub does; an unknown one is left."""
    log = run("get", NAME, env=hub.env(tmp_path) | {"HF_HUB_CACHE": "$PARENT/a-${CHILD}/$NONE", "PARENT": str(tmp_path), "CHILD": "b"})
    assert log[0] == 0, log
    assert (tmp_path / "a-b" / "$NONE" / "models--org--tiny.model" / "snapshots").is_dir()


def test_two_processes_fetch_a_file_once(hub, start_server, tmp_path):
    hub.faults.append(Fault("GET storage/", times=99, slow=1 << 20))
    servers = []
    threads = [threading.Thread(target=lambda: servers.append(start_server(*FLAGS, env=hub.env(tmp_path)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(servers) == 2
    gets = [path for _, _, path, _ in hub.requests("GET", "/resolve/")]
    assert sorted(gets) == sorted(set(gets))
    fetched(tmp_path)


@pytest.mark.model
def test_a_gguf_file_is_taken_by_its_tag(hub, start_server, tmp_path):
    gguf = pathlib.Path(os.environ["MILLRACE_MODEL"])
    hub.add("org/ggufs", {"tiny.Q4_1.gguf": gguf.read_bytes(), "tiny.Q8_0.gguf": b"x"})
    start_server("--model", "org/ggufs:q4_1", env=hub.env(tmp_path))
    assert len(hub.requests("GET", "", "storage")) == -(-gguf.stat().st_size // (16 << 20))
    hub.seen.clear()
    server = start_server("--model", "org/ggufs:tiny.Q4_1.gguf", "--offline", env=hub.env(tmp_path))
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["id"] == "org/ggufs:tiny.Q4_1.gguf" and not hub.seen
    code, log = run("--model", "org/ggufs", env=hub.env(tmp_path))
    assert code == 1 and "name one behind a colon; there are tiny.Q4_1.gguf, tiny.Q8_0.gguf" in log
