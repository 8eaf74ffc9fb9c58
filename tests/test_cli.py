"""Black-box tests of the command line: what `millraced` says to people, the doctor, the plan of memory, and the local cache."""
import os
import re
import shutil
import subprocess

import pytest

from daemon import environment, program, wait_until
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
    assert header.split() == ["MODEL", "REVISION", "SIZE", "STATE"]
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
    assert row.split() == [f"{NAME}:Q8_0/m-Q8_0-00001-of-00003.gguf", "main", "6.0", "kB", "complete"]
    os.remove(last)
    assert "files are missing" in cli("list", env=env)[1]
    code, _, err = cli("get", f"{NAME}:Q8_0", "--offline", env=env)
    assert code == 1 and "has no Q8_0/m-Q8_0-00003-of-00003.gguf, and the hub is not contacted" in err
    # Of a repository that lacks a part, nothing is fetched.
    del hub.models[NAME]["files"]["Q8_0/m-Q8_0-00003-of-00003.gguf"]
    hub.seen.clear()
    code, _, err = cli("get", f"{NAME}:Q8_0", env=env)
    assert code == 1 and f"{NAME}: has no Q8_0/m-Q8_0-00003-of-00003.gguf" in err and not hub.requests("GET", "/resolve/")


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


@pytest.mark.parametrize("name", ["../x", "a/..", "a/b:c", "a", "/etc", "a/b/c"])
def test_rm_takes_nothing_but_a_repositorys_name(name, tmp_path):
    code, _, err = cli("rm", name, env={"HF_HOME": str(tmp_path)})
    assert code == 1
    assert "is no repository of the hub" in err


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
