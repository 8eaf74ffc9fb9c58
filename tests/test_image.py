"""The container image: deploy/image/rootfs.sh makes its tree, and millraced serves in it as a container would run it."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import httpx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from daemon import environment, program, wait_until

pytestmark = pytest.mark.deploy

ROOT = pathlib.Path(__file__).parent.parent
IMAGE = ROOT / "deploy" / "image"
USER = "65532:65532"
MOST_BYTES = 250_000_000


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image") / "tree"
    done = subprocess.run([IMAGE / "rootfs.sh", folder, program()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""
    for parent in folder.parents[:3]:  # pytest's folders are its user's alone, and the server runs as another.
        parent.chmod(0o755)
    return folder


def files(tree):
    return [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]


def test_the_tree_is_small_and_holds_nothing_but_the_program(tree):
    size = sum(path.lstat().st_size for path in files(tree))
    print(f"{size / 1e6:.0f} MB in {len(files(tree))} files")
    assert size <= MOST_BYTES
    programs = {str(path.relative_to(tree)) for path in files(tree) if os.access(path, os.X_OK) and ".so" not in path.name}
    assert programs == {"usr/bin/millraced"}  # no shell, no Python
    assert not [path for path in files(tree) if path.stat().st_mode & 0o6022], "setuid, or writable by others"
    assert "BEGIN CERTIFICATE" in (tree / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert (tree / "etc/passwd").read_text().startswith("millrace:x:65532:65532:")


def test_the_list_of_packages_is_valid_and_complete(tree):
    text = (tree / "usr/share/doc/millrace/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    bom = json.loads(text)
    names = {component["name"] for component in bom["components"]}
    assert {"libc6", "libstdc++6", "libgrpc++1.51", "libcurl4", "libssl3", "ca-certificates", "nlohmann-json3-dev"} <= names
    assert {component["type"] for component in bom["components"]} == {"library"}, "a file that no package owns"
    for component in bom["components"]:
        assert component["version"]
        text = (tree / "usr/share/doc" / component["name"] / "copyright").read_text(errors="replace")
        for licence in re.findall(r"/usr/share/common-licenses/(GPL-[123]|LGPL-2\.1|LGPL-3|Apache-2\.0)", text):
            assert (tree / "usr/share/common-licenses" / licence).exists(), licence
    assert "Apache License" in (tree / "usr/share/licenses/millrace").read_text()


def test_libraries_that_the_program_opens_by_itself_come_along(tmp_path):
    """As cuBLASLt does. This one stands for it, since each Debian has it."""
    library = next(pathlib.Path("/usr/lib").glob("*/libmount.so.1"))
    subprocess.run([IMAGE / "rootfs.sh", tmp_path / "tree", program(), library], check=True, timeout=120)
    assert (tmp_path / "tree" / library.relative_to("/")).exists()
    bom = json.loads((tmp_path / "tree/usr/share/doc/millrace/sbom.cdx.json").read_text())
    assert {"libmount1", "libblkid1"} <= {component["name"] for component in bom["components"]}  # with what it needs in its turn


def test_headers_that_are_compiled_in_are_packages_of_the_build():
    named = re.search(r"^COMPILED_IN = \((.*)\)$", (IMAGE / "sbom.py").read_text(), re.M)[1]
    listed = re.findall(r"^build\t(\S+)", (ROOT / "scripts" / "packages.tsv").read_text(), re.M)
    assert set(re.findall(r'"([^"]+)"', named)) <= set(listed)


@pytest.mark.parametrize("arguments, said", [
    ([], "usage: deploy/image/rootfs.sh FOLDER [PROGRAM [LIBRARY...]]"),
    (["NEW", "/nowhere"], "/nowhere is not a program"),
    (["NEW", "/etc/passwd"], "/etc/passwd is not a program"),
    ([ROOT], "is not empty"),
    (["NEW", program(), "/nowhere.so"], "ldd cannot read"),
])
def test_rootfs_says_what_is_wrong(tmp_path, arguments, said):
    arguments = [tmp_path / "new" if argument == "NEW" else argument for argument in arguments]
    done = subprocess.run([IMAGE / "rootfs.sh", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode != 0
    assert said in done.stdout


def namespaces():
    """Returns a command that runs another one in namespaces of its own, or None where that is not permitted."""
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    allowed = os.getuid() == 0 and subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return command if allowed else None


CHROOT = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")


# As a container runs: the tree read-only but for the volume, no /dev, no /proc, another user. $1: tree, $2: volume, the rest: flags.
INSIDE = """
mount --bind "$1" "$1"
mount --bind "$2" "$1/var/cache/millrace"
mount -o remount,ro,bind "$1"
tree=$1
shift 2
exec chroot --userspec={user} "$tree" /usr/bin/millraced "$@"
"""


def containerfile(name):
    """Returns the instructions of a Containerfile as [(name, the rest)], and ENV's variables."""
    text = re.sub(r"^#.*\n", "", (IMAGE / name).read_text(), flags=re.M).replace("\\\n", " ")
    instructions = [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]
    variables = dict(pair.split("=", 1) for instruction, rest in instructions if instruction == "ENV" for pair in rest.split())
    return instructions, variables


@contextlib.contextmanager
def container(tree, volume, *flags, env=None):
    """Runs millraced in the tree with the variables of Containerfile.cpu. Yields (base URL, health())."""
    runner = namespaces()
    if runner is None:
        pytest.skip("needs root, and namespaces of its own")
    os.chown(volume, *map(int, USER.split(":")))
    variables = {**containerfile("Containerfile.cpu")[1], "MILLRACE_API_KEY": "secret", **(env or {})}
    command = [*runner, "bash", "-euc", INSIDE.format(user=USER), "inside", str(tree), str(volume), "--http-port", "0", "--grpc-port", "0",
               "--admin-port", "0", "--ready-file", "/var/cache/millrace/ready.json", *flags]
    with open(volume / "log", "w") as log:
        process = subprocess.Popen(command, env={**variables, "PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: (volume / "ready.json").exists() or process.poll() is not None)
        assert process.poll() is None, (volume / "log").read_text()
        port = json.loads((volume / "ready.json").read_text())["http"]

        def health():
            command = [CHROOT, f"--userspec={USER}", tree, "/usr/bin/millraced", "health", "--http-port", str(port)]
            return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)

        yield f"http://127.0.0.1:{port}", health
        # unshare passes no signal on: its child is the server.
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait(60) == 0, (volume / "log").read_text()
        assert "drained" in (volume / "log").read_text()
    finally:
        process.kill()
        process.wait()


def test_it_serves_from_a_read_only_tree_as_another_user(tree, tmp_path):
    with container(tree, tmp_path, "--device", "fake") as (url, health):
        assert httpx.get(url + "/livez").status_code == 200
        assert httpx.get(url + "/readyz").status_code == 200
        assert httpx.post(url + "/v1/completions", json={"prompt": "Hello"}).status_code == 401
        answer = httpx.post(url + "/v1/completions", json={"prompt": "Hello", "max_tokens": 3}, headers={"Authorization": "Bearer secret"})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert (health().returncode, health().stderr) == (0, "")


@pytest.mark.model
def test_it_serves_a_model_of_the_volume(tree, tmp_path):
    model = tmp_path / "model.gguf"
    shutil.copy(os.environ["MILLRACE_MODEL"], model)
    model.chmod(0o644)
    with container(tree, tmp_path, "--model", "/var/cache/millrace/model.gguf") as (url, _):
        answer = httpx.post(url + "/v1/completions", json={"prompt": "The sky is", "max_tokens": 3, "temperature": 0},
                            headers={"Authorization": "Bearer secret"}, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 3
    print(re.search(r"ready after \S+", (tmp_path / "log").read_text())[0])


def test_without_a_key_it_refuses_to_listen_to_all(tree):
    if os.getuid() != 0:
        pytest.skip("chroot needs root")
    done = subprocess.run([CHROOT, f"--userspec={USER}", tree, "/usr/bin/millraced", "--device", "fake"],
                          env=containerfile("Containerfile.cpu")[1], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "set --api-key or --keys, or --insecure" in done.stderr


@pytest.mark.parametrize("name", ["Containerfile.cpu", "Containerfile.cuda"])
def test_a_containerfile_names_what_exists(name):
    instructions, variables = containerfile(name)
    given = dict(instructions)  # the last of each
    assert [rest for instruction, rest in instructions if instruction == "FROM"] == ["docker.io/library/debian:12 AS build", "scratch"]
    assert given["USER"] == USER
    assert given["ENTRYPOINT"] == '["/usr/bin/millraced"]'
    assert given["HEALTHCHECK"].endswith('CMD ["/usr/bin/millraced", "health"]')
    settings = subprocess.run([program(), "--print-settings-table"], env=environment(), capture_output=True, text=True).stdout
    for variable in variables:
        if variable.startswith("MILLRACE_"):
            assert f"--{variable[9:].lower().replace('_', '-')} " in settings.replace("[no-]", "").replace("`", " "), variable
    ports = set(re.findall(r"`--(?:http|grpc)-port PORT` \| `(\d+)`", settings))
    assert set(given["EXPOSE"].split()) == ports
    run = next(rest for instruction, rest in instructions if instruction == "RUN" and "rootfs" in rest)
    for script in re.findall(r"(?:scripts|deploy)/\S+\.sh", run):
        assert (ROOT / script).exists()
    for option in re.findall(r"-D(MILLRACE_\w+)=", run):
        assert re.search(rf"\b{option}\b", "".join(path.read_text() for path in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]))
    labels = next(rest for instruction, rest in instructions if instruction == "LABEL")
    version = re.search(r"^project\(millrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
    assert f'version="{version}"' in labels
