"""Black-box tests of the command line: what `millraced` says to people, the doctor, the plan of memory, and the local cache."""
import os
import re
import shutil
import subprocess

import httpx
import pytest

from daemon import environment, program, sanitized, wait_until
from hub_server import Fault
from test_hub import FILES, NAME
from test_hub import hub  # noqa: F401  (a fixture)

pytestmark = pytest.mark.serial


def cli(*arguments, env=None):
    """Returns the exit status, stdout and stderr."""
    done = subprocess.run([program(), *arguments], env=environment(env), capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_alone_it_says_what_to_do():
    code, out, err = cli()
    assert code == 1 and out == ""
    assert "millraced model.gguf" in err and "millraced --help" in err


def test_an_unknown_flag_ends_with_what_was_meant():
    assert cli("--prot", "1")[0] == 1
    assert "did you mean --http-port?" in cli("--htp-port", "1")[2]
    assert "use --max-model-len" in cli("-c", "4096")[2]


def test_the_first_help_is_short():
    code, out, _ = cli("--help")
    assert code == 0 and len(out.splitlines()) <= 30
    assert out.index("\n  chat [MODEL]") < out.index("--device")
    assert cli("help")[1] == out
    assert len(cli("--help-all")[1].splitlines()) > 200
    assert cli("version")[1] == cli("--version")[1]


def test_a_taken_port_is_told_before_the_model_is_read(start_server):
    taken = str(start_server("--device", "fake").ports["http"])
    for port in ("--http-port", "--grpc-port", "--admin-port", "--metrics-port"):
        flags = {"--http-port": "0", "--grpc-port": "0", "--admin-port": "0", port: taken}
        more = ("--metrics-host", "127.0.0.1") if port == "--metrics-port" else ()
        code, _, err = cli("/nowhere/model.gguf", *(word for pair in flags.items() for word in pair), *more)
        assert code == 1 and f"{port[2:]}: cannot listen on 127.0.0.1:{taken}" in err, err
        assert "model.gguf: there is no" not in err


def test_requests_begin_as_the_settings_say(start_server, tmp_path):
    (tmp_path / "millrace.yaml").write_text("temperature: 0.25\ntop_k: 7\nmax-tokens: 9\n")
    server = start_server("--device", "fake", "--config", str(tmp_path / "millrace.yaml"), "--max-tokens", "5")
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["default_sampling_params"] == {"temperature": 0.25, "top_k": 7, "max_tokens": 5}
    assert "sampled with: temperature 0.25, top_k 7, max_tokens 5" in server.log.read_text()
    ask = lambda **fields: httpx.post(server.http + "/v1/completions", json={"prompt": "x", **fields}).json()["usage"]["completion_tokens"]  # noqa: E731
    assert (ask(), ask(max_tokens=3)) == (5, 3)


def test_what_this_is_and_where(start_server):
    server = start_server("--device", "fake", "--api-key", "secret")
    text = httpx.get(server.http + "/")
    assert text.status_code == 200 and text.headers["content-type"].startswith("text/plain")
    assert "/v1/chat/completions" in text.text and "is ready" in text.text and "Bearer KEY" in text.text
    assert "secret" not in text.text and "fake" not in text.text
    page = httpx.get(server.http + "/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html") and "<h1>Millrace" in page.text
    assert "console http://127.0.0.1:" in server.log.read_text()


def test_a_model_may_stand_alone_and_a_warning_names_what_has_no_effect(start_server):
    server = start_server("--device", "fake", "--enable-chunked-prefill")
    assert "warning server flag --enable-chunked-prefill: has no effect" in server.log.read_text()


@pytest.mark.parametrize("content, message", [
    (None, "there is no such file or folder; allowed: a GGUF file, a folder with config.json, or a name of the hub"),
    ({}, "config.json: open: No such file or directory"),
    ({"config.json": "{"}, "config.json: parse error"),
    ({"tiny.gguf": ""}, "it has tiny.gguf: name that file"),
])
def test_an_error_names_the_models_folder(tmp_path, content, message):
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    for command in ((), ("doctor",), ("--dry-run",)):
        code, out, err = cli(*command, str(folder), env={"MILLRACE_HTTP_PORT": "0", "MILLRACE_GRPC_PORT": "0", "MILLRACE_ADMIN_PORT": "0"})
        assert code == 1
        assert str(folder) in out + err and message in out + err


def test_the_doctor_finds_nothing_and_then_a_taken_port(start_server):
    ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port")
    code, out, _ = cli("doctor", "--device", "fake", *ports, "0")
    assert code == 0, out
    assert "ok       processor: " in out and "can serve" in out
    taken = str(start_server("--device", "fake").ports["http"])
    code, out, _ = cli("doctor", "--device", "fake", *ports, taken)
    assert code == 1
    assert f"ERROR    port {taken}: is taken" in out and "--admin-port" in out


@pytest.mark.model
def test_the_doctor_says_what_it_has_not_checked(hub, tmp_path):
    ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
    code, out, _ = cli("doctor", os.environ["MILLRACE_MODEL"], *ports)
    assert code == 0 and out.endswith("Nothing that was checked is wrong; not checked: loading.\n"), out
    code, out, _ = cli("doctor", os.environ["MILLRACE_MODEL"], *ports, "--max-model-len", "100000", "--tool-call-parser", "mine")
    assert code == 1 and "ERROR    max-model-len: 100000 is more than the model's 8192" in out
    assert "ERROR    tokenizer and parsers: tool-call-parser is mine; allowed: " in out
    env = hub.env(tmp_path)
    code, out, _ = cli("doctor", NAME, *ports, env=env)
    assert code == 0 and f"unknown  model: {NAME} is not whole in the local cache" in out and "not checked: model.\n" in out
    code, out, _ = cli("doctor", NAME, *ports, "--offline", env=env)
    assert code == 1 and "has no revision main" in out
    code, out, _ = cli("doctor", os.environ["MILLRACE_MODEL"], *ports, "--tokenizer", NAME, env=env)
    assert code == 0 and "not checked: loading, tokenizer.\n" in out
    assert not hub.seen


def test_the_doctor_of_a_machine_without_a_gpu():
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    code, out, _ = cli("doctor", "--device", "cuda", "none.gguf")
    assert code == 1
    assert "ERROR    driver: there is no libnvidia-ml.so.1" in out and "do: install NVIDIA's driver" in out


@pytest.mark.model
@pytest.mark.skipif(sanitized(), reason="a sanitizer reserves address space of its own")
def test_the_kv_cache_is_half_of_what_is_free(start_server):
    """The limit of address space stands for a small machine."""
    limit = 3 << 30
    model = os.environ["MILLRACE_MODEL"]
    limited = ["prlimit", f"--as={limit}", program()]
    out = subprocess.run([*limited, "--dry-run", model], env=environment(), capture_output=True, text=True, timeout=60).stdout
    rows = {match[1]: float(match[2]) for match in re.finditer(r"^(\S[\w ]*?) +([\d.]+) MiB", out, re.MULTILINE)}
    assert rows["available"] == 3072 and "of the limit of address space" in out
    rest = sum(rows[name] for name in ("weights", "activations", "workspaces", "program and vocabulary"))
    assert abs(rows["KV cache"] - (3072 - rest) / 2) < 1 and "It fits." in out
    # No more than all sequences of full length take.
    code, out, _ = cli("--dry-run", model, "--max-num-seqs", "2", "--max-model-len", "256")
    assert code == 0 and re.search(r" 544 tokens in blocks of 16, or 2 sequences of 256", out)
    server = start_server("--model", model, "--max-num-seqs", "2", "--max-model-len", "256")
    assert ", 34 KV blocks of 16 tokens" in server.log.read_text()
    (served,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert (served["kv_cache_tokens"], served["max_model_len"]) == (544, 256)


@pytest.mark.model
def test_a_kv_cache_too_small_for_a_sequence_is_told(start_server):
    server = start_server("--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "32MiB")
    (served,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert served["kv_cache_tokens"] < served["max_model_len"] == 8192
    assert f"the KV cache holds {served['kv_cache_tokens']} tokens, fewer than a sequence of 8192 has" in server.log.read_text()


@pytest.mark.model
def test_a_plan_for_a_gpu_that_is_not_there():
    model = os.environ["MILLRACE_MODEL"]
    code, out, err = cli("--dry-run", model, "--device", "cuda", "--gpu-memory", "141GiB")
    if cli("--print-kernels")[0] != 0:  # Only the executor knows what it takes.
        assert code == 1 and "device: cuda is not built into this server" in err
        return
    assert code == 0 and "It fits." in out
    assert re.search(r"available +129945.6 MiB  of --gpu-memory", out)  # 90 % of it
    code, out, _ = cli("--dry-run", model, "--device", "cuda", "--gpu-memory", "1GiB")
    assert code == 1 and "It does not fit" in out


@pytest.mark.model
def test_the_plan_of_memory_is_what_the_server_takes(start_server):
    model = os.environ["MILLRACE_MODEL"]
    code, out, _ = cli("--dry-run", model, "--kv-cache-memory", "64MiB")
    assert code == 0 and "It fits." in out
    rows = {match[1]: float(match[2]) for match in re.finditer(r"^(\S[\w ]*?) +([\d.]+) MiB", out, re.MULTILINE)}
    tokens = int(re.search(r"(\d+) tokens in blocks", out)[1])
    server = start_server("--model", model, "--kv-cache-memory", "64MiB")
    log = re.search(r"(\d+) MiB of weights, (\d+) KV blocks of (\d+) tokens", server.log.read_text())
    assert abs(rows["weights"] - int(log[1])) <= 0.02 * int(log[1]) + 1
    assert tokens == int(log[2]) * int(log[3])
    assert rows["total"] == pytest.approx(sum(rows.values()) - rows["total"] - rows["available"], abs=0.5)
    # The cache takes memory as it is used, and nothing has used it yet.
    status = open(f"/proc/{server.process.pid}/status").read()
    resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024
    assert rows["weights"] < resident < rows["total"]


@pytest.mark.model
def test_a_plan_that_does_not_fit_ends_with_1():
    code, out, _ = cli("--dry-run", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "16TiB")
    assert code == 1 and "It does not fit" in out


def test_get_list_and_rm(hub, tmp_path):
    env = hub.env(tmp_path)
    assert "no models" in cli("list", env=env)[1]
    code, path, err = cli("get", NAME, env=env)
    assert code == 0, err
    assert set(os.listdir(path.strip())) == set(FILES) - {"README.md"}
    code, out, _ = cli("list", env=env)
    assert code == 0
    header, row = out.splitlines()
    assert header.split() == ["MODEL", "REVISION", "SIZE", "USED", "STATE"]
    assert row.split()[:2] == [NAME, "main"] and row.endswith("complete")

    # A file that is gone makes it incomplete, and is fetched again.
    weights = next(name for name in FILES if name.endswith(".safetensors"))
    os.remove(os.path.join(path.strip(), weights))
    assert "files are missing" in cli("list", env=env)[1]
    assert cli("get", NAME, env=env)[1] == path
    assert "complete" in cli("list", env=env)[1]

    assert cli("rm", NAME, env=env)[1].startswith(f"removed {NAME}, ")
    assert "no models" in cli("list", env=env)[1]
    assert [file for _, _, files in os.walk(tmp_path / "hub") for file in files] == []
    code, _, err = cli("rm", NAME, env=env)
    assert code == 1 and "is not in the cache" in err


def test_a_fetch_that_broke_off_is_listed_and_removed(hub, tmp_path):
    env = hub.env(tmp_path)
    hub.add(NAME, {"config.json": b"{}", "model.safetensors": bytes(1 << 20)})
    hub.faults.append(Fault("GET storage/", times=99, slow=20_000))
    with subprocess.Popen([program(), "get", NAME], env=environment(env), stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: hub.requests("GET", "", "storage"))
        (row,) = cli("list", env=env)[1].splitlines()[1:]
        assert row.split()[:2] == [NAME, "-"] and row.endswith("being fetched")
        assert cli("rm", NAME, env=env)[0] == 1
        process.kill()
    (row,) = cli("list", env=env)[1].splitlines()[1:]
    assert row.split()[:2] == [NAME, "-"] and "a fetch broke off" in row
    assert cli("rm", NAME, env=env)[0] == 0
    assert "no models" in cli("list", env=env)[1]
    assert not [file for _, _, files in os.walk(tmp_path / "hub") for file in files]


def test_a_fetch_that_broke_off_is_listed_beside_what_is_complete(hub, tmp_path):
    env = hub.env(tmp_path)
    cli("get", NAME, env=env)
    blob = tmp_path / "hub" / "models--org--tiny.model" / "blobs" / f"{'0' * 64}.incomplete"
    with open(blob, "wb") as file:
        file.truncate(1 << 40)  # a hole
    complete, begun = cli("list", env=env)[1].splitlines()[1:]
    assert complete.endswith("complete")
    assert begun.split()[:4] == [NAME, "-", "0", "B"] and "a fetch broke off" in begun
    assert "TB" not in cli("rm", NAME, env=env)[1]


def test_the_files_of_a_split_gguf_model_are_one(hub, tmp_path):
    env = hub.env(tmp_path)
    files = {f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf": bytes(2000) for i in (1, 2, 3)}
    hub.add(NAME, {**files, "m-Q4_0.gguf": b"x"})
    code, path, err = cli("get", f"{NAME}:Q8_0", env=env)
    assert code == 0, err
    first, _, last = (os.path.join(path.strip().removesuffix("Q8_0/m-Q8_0-00001-of-00003.gguf"), name) for name in files)
    assert path.strip() == first and not hub.requests("GET", "m-Q4_0.gguf")
    (row,) = cli("list", env=env)[1].splitlines()[1:]
    assert row.split() == [f"{NAME}:Q8_0/m-Q8_0-00001-of-00003.gguf", "main", "6.0", "kB", "now", "complete"]
    os.remove(last)
    assert "files are missing" in cli("list", env=env)[1]
    code, _, err = cli("get", f"{NAME}:Q8_0", "--offline", env=env)
    assert code == 1 and "has no Q8_0/m-Q8_0-00003-of-00003.gguf, and the hub is not contacted" in err
    # Of a repository that lacks a part, nothing is fetched.
    del hub.models[NAME]["files"]["Q8_0/m-Q8_0-00003-of-00003.gguf"]
    hub.seen.clear()
    code, _, err = cli("get", f"{NAME}:Q8_0", env=env)
    assert code == 1 and f"{NAME}: has no Q8_0/m-Q8_0-00003-of-00003.gguf" in err and not hub.requests("GET", "/resolve/")


def test_one_file_of_a_repository_is_removed(hub, tmp_path):
    env = hub.env(tmp_path)
    parts = [f"m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.add(NAME, {**{name: bytes([i]) * 2000 for i, name in enumerate(parts)}, "m-Q4_0.gguf": b"x" * 500, "same-Q5_0.gguf": b"x" * 500})
    for wanted in ("Q8_0", "Q4_0", "Q5_0"):
        assert cli("get", f"{NAME}:{wanted}", env=env)[0] == 0
    blobs = tmp_path / "hub" / "models--org--tiny.model" / "blobs"
    assert len(os.listdir(blobs)) == 3
    assert cli("rm", f"{NAME}:Q8_0", env=env)[1] == f"removed {NAME}:Q8_0, 4.0 kB\n"
    rows = [row.split()[0] for row in cli("list", env=env)[1].splitlines()[1:]]
    assert rows == [f"{NAME}:m-Q4_0.gguf", f"{NAME}:same-Q5_0.gguf"]
    # The contents are another file's, too.
    assert cli("rm", f"{NAME}:m-Q4_0.gguf", env=env)[1].endswith("0 B\n") and len(os.listdir(blobs)) == 1
    code, _, err = cli("rm", f"{NAME}:Q4_0", env=env)
    assert code == 1 and "rm: org/tiny.model: " in err and "millraced list" in err
    assert cli("rm", f"{NAME}:Q5_0", env=env)[1].endswith("500 B\n") and not os.listdir(blobs)


def test_list_has_the_default_model(hub, tmp_path):
    env = hub.env(tmp_path)
    path = tmp_path / "millrace" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(bytes(3000))
    os.utime(path, (1, 1))
    (row,) = cli("list", env=env)[1].splitlines()[1:]
    assert row.split()[:4] == [str(path), "default", "3.0", "kB"] and row.endswith("days ago  complete")


def test_list_leaves_out_what_is_no_models_folder(hub, tmp_path):
    env = hub.env(tmp_path)
    cli("get", NAME, env=env)
    for folder in ("models--", "models--x", "models--a--..", "datasets--a--b", "models--empty--one"):
        (tmp_path / "hub" / folder / "snapshots").mkdir(parents=True)
    assert len(cli("list", env=env)[1].splitlines()) == 2


def test_no_token_is_read_where_no_request_is_sent(hub, tmp_path):
    cli("get", NAME, env=hub.env(tmp_path))
    env = hub.env(tmp_path, HF_TOKEN="hf_good secret")
    for command in (("list",), ("get", NAME, "--offline"), ("--dry-run", NAME, "--kv-cache-memory", "16MiB"), ("rm", NAME)):
        code, _, err = cli(*command, env=env)
        assert code == 0, err
    assert "HF_TOKEN holds an invalid token" in cli("get", NAME, env=env)[2]


def test_list_says_what_another_tool_may_have_left_out(hub, tmp_path):
    env = hub.env(tmp_path)
    path = cli("get", NAME, env=env)[1].strip()
    assert cli("list", env=env)[1].splitlines()[1].endswith("complete")
    shutil.rmtree(tmp_path / "hub" / "models--org--tiny.model" / ".no_exist")
    os.remove(os.path.join(path, "tokenizer_config.json"))
    assert "perhaps incomplete" in cli("list", env=env)[1]
    assert cli("get", NAME, env=env)[0] == 0
    assert cli("list", env=env)[1].splitlines()[1].endswith("complete")


@pytest.mark.parametrize("name", ["../x", "a/..", "a/b:../c", "a/b:/c.gguf", "a", "/etc", "a/b/c"])
def test_rm_takes_nothing_but_a_repositorys_name(name, tmp_path):
    code, _, err = cli("rm", name, env={"HF_HOME": str(tmp_path)})
    assert code == 1
    assert "is no model of the hub; allowed: org/name, which is removed with all its files, or org/name:FILE.gguf" in err


def test_a_model_that_is_fetched_is_not_removed(hub, tmp_path):
    import fcntl
    env = hub.env(tmp_path)
    cli("get", NAME, env=env)
    locks = tmp_path / "hub" / ".locks" / "models--org--tiny.model"
    with open(next(locks.iterdir()), "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = cli("rm", NAME, env=env)
    assert code == 1 and "another process is fetching" in err
    assert "complete" in cli("list", env=env)[1]
