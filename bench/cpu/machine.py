"""The machine's description, its use by others, and the processes that the comparison starts."""
import os
import pathlib
import platform
import resource
import socket
import subprocess
import time

CORES = os.cpu_count()
TICK = os.sysconf("SC_CLK_TCK")
# Process times are exact to the nanosecond and machine times to the tick, so a short run may seem off by this much.
TICK_ERROR_S = 0.03

_running = set()  # pids of our processes that have not been waited for


class BenchError(Exception):
    """Raised when a run yields no figure. The message says why."""


def start(command, log, **options):
    """Starts a process whose CPU time counts as ours until stop() has waited for it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, **options)
    _running.add(process.pid)
    return process


def wait(process, timeout):
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise BenchError(f"{process.args[0]} did not end within {timeout} s") from None
    finally:
        _running.discard(process.pid)


def output_of(command, log_path, timeout=600, with_errors=False):
    """Runs a program, which must succeed, and returns its standard output, and its standard error if requested; otherwise that
    goes to the log."""
    with open(log_path, "ab") as log, open(f"{log_path}.out", "w+b") as out:
        process = start(command, out if with_errors else log, stdout=out)
        code = wait(process, timeout)
        out.seek(0)
        text = out.read().decode()
    if code != 0:
        raise BenchError(f"{' '.join(map(str, command))} ended with {code}; see {log_path}")
    return text


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident_mb(pid):
    """Returns resident memory in MB of 10^6 bytes, including mapped pages of the model's file."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"process {pid} has no resident memory")


def _busy():
    """Returns the CPU seconds spent by the machine since boot: user, nice, system, and stolen by a host."""
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(
        int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + steal) / TICK


def _ours():
    """Returns the CPU seconds of this process, of children it has waited for, and of running children."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for pid in _running:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICK  # utime, stime
    return total


class Watch:
    """Measures other processes' share of the machine's CPU between construction and stop()."""

    def __init__(self):
        self._begin = time.monotonic(), _busy(), _ours()
        self.seconds = self.foreign_s = 0.0

    def stop(self):
        began, busy, ours = self._begin
        self.seconds = time.monotonic() - began
        self.foreign_s = max(0.0, (_busy() - busy) - (_ours() - ours))
        return self

    @property
    def percent(self):
        """Returns the share of all cores."""
        return 100 * self.foreign_s / (self.seconds * CORES)

    def quiet(self, limit_percent):
        return self.foreign_s <= max(limit_percent / 100 * self.seconds * CORES, TICK_ERROR_S)


def wait_until_idle(limit_percent, timeout_s):
    """Returns True after two quiet seconds in a row, or False if there were none in time."""
    deadline = time.monotonic() + timeout_s
    quiet = 0
    while quiet < 2:
        watch = Watch()
        time.sleep(1)
        quiet = quiet + 1 if watch.stop().quiet(limit_percent) else 0
        if quiet == 0 and time.monotonic() > deadline:
            return False
    return True


def describe():
    cpu = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{CORES} cores of {cpu}, {memory:.0f} GiB, Linux {platform.release()}"
