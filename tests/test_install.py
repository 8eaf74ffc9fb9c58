"""What `cmake --install` and the Debian package install: each part is given to the program that it is for."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from daemon import environment, program

pytestmark = pytest.mark.deploy

ROOT = pathlib.Path(__file__).parent.parent
BUILD = pathlib.Path(program()).resolve().parent


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


INSTALLED = {
    "bin/millrace-loadtest", "bin/millraced", "lib/systemd/system/millraced.service", "share/bash-completion/completions/millrace-loadtest",
    "share/bash-completion/completions/millraced", "share/doc/millrace/copyright",
    "share/doc/millrace/examples/gpu.conf", "share/fish/vendor_completions.d/millrace-loadtest.fish",
    "share/fish/vendor_completions.d/millraced.fish", "share/man/man1/millrace-loadtest.1.gz", "share/man/man8/millraced.8.gz",
    "share/zsh/vendor-completions/_millrace-loadtest", "share/zsh/vendor-completions/_millraced",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    run("cpack", "-G", "DEB", "-B", folder, cwd=BUILD)
    packages = list(folder.glob("*.deb"))
    assert len(packages) == 1
    return packages[0]


def test_everything_is_installed(installed):
    assert files_below(installed) == INSTALLED
    assert run(installed / "bin/millraced", "--version", env=environment()) == "millraced 0.1.0\n"


def test_the_manual_page_is_one(installed):
    page = run("man", "--warnings", "-l", installed / "share/man/man8/millraced.8.gz", env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "96", "LC_ALL": "C.UTF-8"})
    assert not re.search(r":\d+: (warning|error)", page)
    flags = re.findall(r"^  (--\S+)", run(program(), "--help-all"), re.M)
    assert len(flags) > 40
    for flag in flags:
        assert flag.rstrip(",") in page


def test_the_load_generators_manual_page_is_one(installed):
    page = run("man", "--warnings", "-l", installed / "share/man/man1/millrace-loadtest.1.gz", env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "96", "LC_ALL": "C.UTF-8"})
    assert not re.search(r":\d+: (warning|error)", page)
    flags = re.findall(r"^  (--[a-z-]+)", run(installed / "bin/millrace-loadtest", "--help").split("\nOther:")[0], re.M)
    assert len(flags) > 40
    for flag in flags:
        assert flag in page


def test_systemd_takes_the_unit(installed):
    unit = installed / "lib/systemd/system/millraced.service"
    assert f"\nExecStart={installed}/bin/millraced\n" in unit.read_text()
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""
    # Tenths: 20 of 100 is well below what systemd calls "medium".
    assert "millraced.service" in run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit)


def test_systemd_takes_the_unit_with_the_part_for_gpus(installed, tmp_path):
    """Written as one file, since `verify` does not look at folders of parts that lie elsewhere."""
    unit = tmp_path / "millraced.service"
    text = (installed / "lib/systemd/system/millraced.service").read_text()
    unit.write_text(text + "\n" + (installed / "share/doc/millrace/examples/gpu.conf").read_text())
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""


def test_the_unit_waits_for_the_drain(installed):
    unit = (installed / "lib/systemd/system/millraced.service").read_text()
    drain = re.search(r"--drain-timeout TIME\n.*\n\s+\[.*default (\d+)s\]", run(program(), "--help-all"))
    # Beyond it: a second for the last words to clients, ten for a device that hangs.
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)[1]) >= int(drain[1]) + 11


@pytest.mark.parametrize("words, expected", [
    (["--dev"], {"--device", "--devices"}),
    (["--no-off"], {"--no-offline"}),
    (["--device", "c"], {"cpu", "cuda"}),
    (["--device", "=", "f"], {"fake"}),
    (["--device", "="], {"cpu", "cuda", "torch", "fake"}),
    (["h"], {"health"}),
    (["health", "--probe"], {"--probe", "--probe-timeout"}),
    (["health", "--model"], set()),
    (["bench", "--inp"], {"--input-len"}),
    (["--print-completion", ""], {"bash", "zsh", "fish"}),
    (["--http-port", ""], set()),
])
def test_bash_completes(installed, words, expected):
    script = 'source "$1"; shift; compopt() { :; }; COMP_WORDS=(millraced "$@"); COMP_CWORD=$#; _millraced; printf "%s\\n" "${COMPREPLY[@]}"'
    output = run("bash", "-euc", script, "bash", installed / "share/bash-completion/completions/millraced", *words)
    assert set(output.split()) == expected


def test_bash_completes_paths_as_it_always_does(installed):
    script = 'source "$1"; compopt() { echo "$@"; }; COMP_WORDS=(millraced --model x); COMP_CWORD=2; _millraced'
    assert run("bash", "-euc", script, "bash", installed / "share/bash-completion/completions/millraced") == "-o default\n"


def test_zsh_completes(installed):
    """zsh parses the function, and its specifications are those of _arguments: "--flag=[text]:name:action"."""
    script = "_arguments() { print -rl -- \"$@\" }; words=(millraced ${=2} ''); source $1"
    function = installed / "share/zsh/vendor-completions/_millraced"

    def specifications(words):
        return run("zsh", "-fec", script, "zsh", function, words).splitlines()

    for words, flags in (("", {"--device", "--no-offline", "--print-completion"}), ("bench", {"--input-len"}), ("health", {"--probe"})):
        lines = specifications(words)
        assert ("*:MODEL:_files" in lines) == (words == "")
        lines = [line for line in lines if line != "*:MODEL:_files"]
        for line in lines[1:]:
            assert re.fullmatch(r"\*?--[a-z-]+(=?\[([^][\\]|\\.)*\](:([^:\\]|\\.)+:.*)?)", line), line
        assert flags <= {re.match(r"\*?(--[a-z-]+)", line)[1] for line in lines[1:]}
    assert any(line.endswith(":DEVICE:(cpu cuda torch fake)") for line in specifications(""))


def test_fish_completes(installed, tmp_path):
    script = installed / "share/fish/vendor_completions.d/millraced.fish"
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    def complete(line):
        output = run("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'", env=env)
        return {offer.split("\t")[0] for offer in output.splitlines()}

    assert complete("millraced --dev") == {"--device", "--devices"}
    assert complete("millraced --device c") == {"cpu", "cuda"}
    assert complete("millraced --no-off") == {"--no-offline"}
    assert {"health"} == {word for word in complete("millraced h") if "/" not in word}  # beside files, which may be models
    assert complete("millraced health --pro") == {"--probe", "--probe-timeout"}
    assert complete("millraced health --mod") == set()


def test_shells_complete_the_load_generator(installed, tmp_path):
    def bash(*words):
        script = 'source "$1"; shift; compopt() { echo "$@"; }; COMP_WORDS=(millrace-loadtest "$@"); COMP_CWORD=$#; _millrace_loadtest; printf "%s\n" "${COMPREPLY[@]}"'
        return set(run("bash", "-euc", script, "bash", installed / "share/bash-completion/completions/millrace-loadtest", *words).split())

    assert bash("--conc") == {"--concurrency", "--concurrencies"}
    assert bash("--protocol", "g") == {"grpc"}
    assert bash("sw") == {"sweep"}
    assert bash("--dataset", "") == {"-o", "default"}
    assert bash("--rate", "") == set()

    script = "_arguments() { print -rl -- \"$@\" }; source $1"
    lines = run("zsh", "-fec", script, "zsh", installed / "share/zsh/vendor-completions/_millrace-loadtest").splitlines()
    for line in lines[:-2]:
        assert re.fullmatch(r"\*?--[a-z-]+\[([^][\\]|\\.)*\](:([^:\\]|\\.)+:.*)?", line), line
    assert any(line.endswith(":PROTOCOL:(http grpc)") for line in lines)

    fish = installed / "share/fish/vendor_completions.d/millrace-loadtest.fish"
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    output = run("fish", "--no-config", "-c", f"source {fish}; complete -C 'millrace-loadtest --protocol g'", env=env)
    assert {offer.split("\t")[0] for offer in output.splitlines()} == {"grpc"}


def test_the_debian_package_holds_the_same(package, tmp_path):
    fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "-f", package).splitlines() if line.strip() and line[0] != " ")
    assert fields["Package"] == "millrace" and fields["Version"] == "0.1.0"
    depends = {part.split()[0] for part in fields["Depends"].split(", ")}
    assert {"ca-certificates", "libc6", "libcurl4", "libstdc++6"} <= depends
    assert not any("python" in name or name.endswith("-dev") for name in depends)
    run("dpkg-deb", "-x", package, tmp_path)
    assert files_below(tmp_path) == {f"usr/{path}" for path in INSTALLED}
    assert "\nExecStart=/usr/bin/millraced\n" in (tmp_path / "usr/lib/systemd/system/millraced.service").read_text()
    owners = set(re.findall(r"^\S+ (\S+) ", run("dpkg-deb", "-c", package), re.M))
    assert owners == {"root/root"}


@pytest.mark.skipif(os.getuid() != 0, reason="dpkg installs as root")
def test_dpkg_installs_and_removes_it(package, tmp_path):
    """Into a folder, without its dependencies, which this system has."""
    shutil.copytree("/var/lib/dpkg/info", tmp_path / "var/lib/dpkg/info", ignore=lambda folder, names: names)
    (tmp_path / "var/lib/dpkg/updates").mkdir()
    (tmp_path / "var/lib/dpkg/status").touch()
    dpkg = ["dpkg", f"--root={tmp_path}", "--force-depends", "--force-script-chrootless", "--log=/dev/null"]
    run(*dpkg, "-i", package)
    assert run(tmp_path / "usr/bin/millraced", "--version", env=environment()) == "millraced 0.1.0\n"
    assert "install ok installed" in run("dpkg", f"--root={tmp_path}", "-s", "millrace")
    run(*dpkg, "-r", "millrace")
    assert not (tmp_path / "usr/bin/millraced").exists()
