"""Faults of the machine and by its operator: signals, disks, descriptors, memory, clocks, files."""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

from beside import Beside, Row, Server, complete, seconds, serves_again
from daemon import device_flags, environment, program
from rest import scrape, total

FAKE = ["--device", "fake", "--fake-step-us", "5000"]


def model():
    return ["--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "128MiB", *device_flags()]


def free_ports():
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
    return [text for name, port in zip(("http", "grpc", "admin"), ports) for text in (f"--{name}-port", str(port))]


def killed(folder, options):
    """SIGKILL under streams, and a restart"""
    ports = free_ports()
    server = Server(folder, *model(), *ports)
    beside = Beside(server)
    server.signal(signal.SIGKILL)
    http, grpc, health = beside.end()
    server.wait()
    begin = time.monotonic()
    server = Server(folder, *model(), *ports)
    serves_again(server)
    row = Row(http, grpc, health, f"exit {-signal.SIGKILL}", seconds(time.monotonic() - begin))
    server.stop()
    return row.must("hangs" not in http + grpc, "a client hangs")


def stopped(folder, options):
    """SIGSTOP for 8 s (--stall-timeout 5s), then SIGCONT"""
    server = Server(folder, *FAKE, "--stall-timeout", "5s")
    beside = Beside(server, length=600)
    server.signal(signal.SIGSTOP)
    time.sleep(8)
    server.signal(signal.SIGCONT)
    back = serves_again(server)
    time.sleep(1)
    http, grpc, health = beside.end()
    stalls = total(scrape(server), "millrace_engine_stalls_total")
    server.stop()
    row = Row(http, grpc, health, f"stalls {stalls:.0f}", seconds(back))
    return row.must(http == grpc == "3 x whole", "a stream broke").must(stalls == 0, "a stop counts as a stall of the device") \
        .must("503" not in health and "NOT_SERVING" not in health, "health failed for want of a device's step")


def terminated(folder, options):
    """SIGTERM under streams, again and again (every second one with --drain-timeout 100ms)"""
    generator = random.Random(22)
    ends = {"http": [], "grpc": []}
    statuses = []
    for number in range(options.terms):
        short = number % 2 == 1
        server = Server(folder, *FAKE, "--drain-timeout", "100ms" if short else "60s")
        beside = Beside(server, length=400 if short else 60)
        time.sleep(generator.random() * 0.1)
        server.signal()
        http, grpc, _ = beside.end()
        ends["http"] += [client.outcome for client in beside.http]
        ends["grpc"] += [client.outcome for client in beside.grpc]
        statuses.append(server.wait())
        server.stop()
    row = Row(tally(ends["http"]), tally(ends["grpc"]), "200/503/NOT_SERVING while it drains", f"exit 0: {statuses.count(0)} of {len(statuses)}", "")
    row.must(set(statuses) == {0}, f"exit statuses {sorted(set(statuses))}")
    row.must(set(ends["http"]) <= {"whole", "last event server_shutting_down", "last event service_unavailable"}, f"HTTP: {tally(ends['http'])}")
    return row.must(set(ends["grpc"]) <= {"whole", "UNAVAILABLE"}, f"gRPC: {tally(ends['grpc'])}")


def tally(outcomes):
    return ", ".join(f"{outcomes.count(what)} x {what}" for what in sorted(set(outcomes)))


@contextlib.contextmanager
def small_disk(folder):
    """Yields a folder on a disk of 256 KiB, or None where this user may mount nothing."""
    disk = folder / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def log_disk_full(folder, options):
    """The disk of the log is full for 3 s"""
    with small_disk(folder) as disk:
        if disk is None:
            return Row("not tried: this user may not mount")
        server = Server(folder, *FAKE, "--log-format", "json", log=disk / "log.txt")
        filler = disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        beside = Beside(server)
        for _ in range(10):
            complete(server)
        full = total(scrape(server), "millrace_log_lines_dropped_total")
        http, grpc, health = beside.end()
        time.sleep(3)
        filler.unlink()
        back = serves_again(server)
        complete(server)
        lost = total(scrape(server), "millrace_log_lines_dropped_total")
        lines = server.log.read_text().splitlines()
        server.stop()
    row = Row(http, grpc, health, f"log lines dropped {lost:.0f}", seconds(back))
    row.must(http == grpc == "3 x whole", "a stream broke").must(full > 0, "lines that were lost are not counted")
    torn = [line for line in lines if not (line.startswith("{") and line.endswith("}"))]
    row.must(len(torn) <= 1 and all(line.count("{") <= 1 for line in torn), f"more than the line that met the end of the disk is torn: {torn}")
    return row.must(any("log lines were lost" in line for line in lines), "the log does not say that lines are missing")


def log_file_limit(folder, options):
    """The log reaches the largest size of a file (ulimit -f)"""
    server = Server(folder, *FAKE, before=["prlimit", "--fsize=4096"])
    beside = Beside(server)
    for _ in range(40):
        complete(server)
    http, grpc, health = beside.end()
    lost = total(scrape(server), "millrace_log_lines_dropped_total")
    server.stop()
    row = Row(http, grpc, health, f"log lines dropped {lost:.0f}", "0.0 s")
    return row.must(http == grpc == "3 x whole", "a stream broke").must(lost > 0, "nothing was dropped")


def ready_file_disk_full(folder, options):
    """The disk of --ready-file is full at the start"""
    with small_disk(folder) as disk:
        if disk is None:
            return Row("not tried: this user may not mount")
        with contextlib.suppress(OSError), open(disk / "filler", "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        ports = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
        process = subprocess.run([program(), *FAKE, *ports, "--ready-file", disk / "ready.json"], env=environment(), capture_output=True, text=True, timeout=60)
        left = sorted(file.name for file in disk.iterdir())
    said = process.stderr.splitlines()[-1]
    return Row("–", "–", "–", f"exit {process.returncode}: {said.split(' server ')[-1]}", "").must(process.returncode == 1, "it started") \
        .must("ready" in said, "the error does not name the file").must(left == ["filler"], f"left behind: {left}")


def no_descriptors(folder, options):
    """256 descriptors in all (ulimit -n), and 600 connections that send nothing for 3 s"""
    server = Server(folder, *FAKE, before=["prlimit", "--nofile=256:256"])
    # That a probe is answered counts, not how soon on a busy machine. Its connection, which has not sent its request yet, may give way
    # to those that come meanwhile; Kubernetes, too, takes three failures for one.
    beside = Beside(server, length=800, probe_timeout=10, probe_attempts=3)
    connections = []
    with open(f"/proc/{server.process.pid}/stat") as stat:
        before = sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
    for number in range(600):
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(("127.0.0.1", server.ports["grpc" if number % 2 else "http"]), timeout=0.5))
    time.sleep(3)
    with open(f"/proc/{server.process.pid}/stat") as stat:
        used = (sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) - before) / os.sysconf("SC_CLK_TCK")
    for connection in connections:
        connection.close()
    back = serves_again(server)
    http, grpc, health = beside.end()
    alive = server.process.poll() is None
    server.stop()
    row = Row(http, grpc, health, f"{used:.1f} s of CPU meanwhile", seconds(back))
    return row.must(alive, "it ended").must(http == grpc == "3 x whole", "a stream broke").must(back < 10, "it does not serve again") \
        .must("–/" not in health, "probes were not answered")


@contextlib.contextmanager
def memory_group(bytes_more_than):
    """Yields a control group of memory (version 1 or 2), or None where this user may make none."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = pathlib.Path(root) / f"millrace-faults-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(bytes_more_than))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.1)
        return
    yield None


def post_large_bodies(server, count, megabytes):
    """Sends bodies of so many megabytes at once, each a prompt that is refused when it is whole."""
    body = b'{"prompt": "' + b"x " * (megabytes << 19) + b'"}'
    outcomes = []

    def post():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=30) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            sock.sendall(body)
            outcomes.append(sock.recv(12)[9:].decode())

    threads = [threading.Thread(target=post) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def memory_enough(folder, options):
    """A control group of 1 GiB, and 24 bodies of 30 MB at once"""
    return memory_limited(folder, 1 << 30, True)


def memory_short(folder, options):
    """A control group of 320 MiB, and 24 bodies of 30 MB at once, for which the kernel kills it"""
    return memory_limited(folder, 320 << 20, False)


def memory_limited(folder, limit, enough):
    with memory_group(limit) as group:
        if group is None:
            return Row("not tried: this user may make no control group")
        before = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        ports = free_ports()
        flags = [*FAKE, "--kv-cache-memory", "64MiB", *ports]
        server = Server(folder, *flags, before=before)
        beside = Beside(server, length=600 if enough else 6000)
        answers = post_large_bodies(server, 24, 30)
        ended = server.process.poll() if enough else server.wait()
        begin = time.monotonic()
        if ended is not None:
            server = Server(folder, *flags, before=before)
        serves_again(server)
        back = time.monotonic() - begin
        http, grpc, health = beside.end()
        server.stop()
    row = Row(http, grpc, health, f"exit {ended}" if ended is not None else f"bodies: {tally(answers)}", seconds(back))
    return row.must("hangs" not in http + grpc, "a client hangs").must(not enough or ended is None, f"it ended with {ended}") \
        .must(not enough or http == grpc == "3 x whole", "a stream broke")


def address_space(folder, options):
    """An address space of 3 GiB (ulimit -v), and 24 bodies of 30 MB at once"""
    server = Server(folder, *FAKE, "--kv-cache-memory", "64MiB", before=["prlimit", f"--as={3 << 30}"])
    beside = Beside(server, length=600)
    answers = post_large_bodies(server, 24, 30)
    back = serves_again(server) if server.process.poll() is None else float("inf")
    http, grpc, health = beside.end()
    ended = server.process.poll()
    server.stop()
    row = Row(http, grpc, health, f"exit {ended}" if ended is not None else f"bodies: {tally(answers)}", seconds(back))
    return row.must("hangs" not in http + grpc, "a client hangs").must(ended is None, f"it ended with {ended}")


def find_libfaketime():
    for file in pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"):
        return file
    given = os.environ.get("LIBFAKETIME")
    return pathlib.Path(given) if given else None


def clock_jumps(folder, options):
    """The wall clock jumps forth by an hour, then back by two"""
    library = find_libfaketime()
    if library is None:
        return Row("not tried: needs the package libfaketime, or its library in LIBFAKETIME")
    offset = folder / "offset"
    offset.write_text("+0s")
    env = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
           "DONT_FAKE_MONOTONIC": "1"}
    server = Server(folder, *FAKE, env=env)
    beside = Beside(server, length=800, timeout_ms=60_000)
    for jump in ("+3600s", "-3600s"):
        time.sleep(1)
        offset.write_text(jump)
    time.sleep(1)
    back = serves_again(server)
    http, grpc, health = beside.end()
    stamps = {line[:13] for line in server.log.read_text().splitlines()}
    late = Beside(server, length=2000, timeout_ms=1000)  # deadlines hold at the new time
    begin = time.monotonic()
    late_http, late_grpc, _ = late.end()
    took = time.monotonic() - begin
    server.signal()
    ended = server.wait()
    row = Row(http, grpc, health, f"deadlines of 1 s after it: {late_http}; {late_grpc}; exit {ended}", seconds(back))
    row.must(http == grpc == "3 x whole", "a stream broke").must(took < 10, f"deadlines of 1 s took {took:.0f} s").must(ended == 0, f"exit {ended}")
    return row.must(len(stamps) > 1, "the clock of the log has not jumped, so nothing was tried")


def truncated_while_loading(folder, options):
    """The model's file is cut to half while it is loaded (20 starts)"""
    generator = random.Random(22)
    copy = folder / "model.gguf"
    ends = []
    for _ in range(20):
        shutil.copy(os.environ["MILLRACE_MODEL"], copy)
        command = [program(), "--model", copy, "--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--kv-cache-memory", "64MiB",
                   "--ready-file", folder / "ready.json", *device_flags()]
        (folder / "ready.json").unlink(missing_ok=True)
        with open(folder / "log.txt", "wb") as log:
            process = subprocess.Popen(command, env=environment(), stderr=log)
        time.sleep(generator.random() * 0.5)
        os.truncate(copy, copy.stat().st_size // 2)
        deadline = time.monotonic() + 60
        while process.poll() is None and not (folder / "ready.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is None:
            process.kill()
            process.wait()
            ends.append("serves")
        else:
            ends.append(f"exit {process.returncode}")
            if "model.gguf" not in (folder / "log.txt").read_text().splitlines()[-1]:
                ends[-1] += " without naming the file"
    return Row("–", "–", "–", tally(ends), "").must(set(ends) <= {"serves", "exit 1"}, tally(ends))


def truncated_while_serving(folder, options):
    """The model's file is cut to nothing while it serves"""
    copy = folder / "model.gguf"
    shutil.copy(os.environ["MILLRACE_MODEL"], copy)
    server = Server(folder, "--model", str(copy), "--kv-cache-memory", "128MiB", *device_flags())
    before = complete(server)
    beside = Beside(server, length=60)
    os.truncate(copy, 0)
    back = serves_again(server)
    after = complete(server)
    http, grpc, health = beside.end()
    server.stop()
    return Row(http, grpc, health, "the same answer" if after == before else "another answer", seconds(back)) \
        .must(http == grpc == "3 x whole", "a stream broke").must(after == before, f"{after!r} instead of {before!r}")


FAULTS = [killed, stopped, terminated, log_disk_full, log_file_limit, ready_file_disk_full, no_descriptors, memory_enough, memory_short,
          address_space, clock_jumps, truncated_while_loading, truncated_while_serving]
