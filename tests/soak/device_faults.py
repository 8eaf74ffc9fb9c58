"""Faults of the device, by the fault points of the executors, on the fake device and, with the model, on the CPU or a GPU."""
import functools

from beside import Beside, Row, Server, seconds, serves_again
from daemon import on_a_gpu
from machine_faults import FAKE, free_ports, model
from rest import scrape, total


def flags_of(device):
    return FAKE if device == "fake" else model()


def row_fails(folder, options, device, point):
    number = 3 if device == "cuda" else 20  # of the rows that the point counts: on a GPU those of prompts
    server = Server(folder, *flags_of(device), "--faults", f"{point}=1@{number}")
    beside = Beside(server, length=60)
    http, grpc, health = beside.end()
    back = serves_again(server)
    errors = total(scrape(server), "vllm:request_success_total", finished_reason="error")
    server.stop()
    both = f"{http}; {grpc}"
    return Row(http, grpc, health, f"request_success{{error}} {errors:.0f}", seconds(back)) \
        .must(errors == 1, f"{errors:.0f} requests ended with an error").must(both.count("whole") == 2 and "2 x whole" in both, f"not one stream alone: {both}") \
        .must("503" not in health, "health failed")


def device_fails(folder, options, device, point, flags=()):
    ports = free_ports()
    server = Server(folder, *flags_of(device), *ports, *flags, "--faults", f"{point}@60")
    beside = Beside(server, length=2000)
    status = server.wait()
    http, grpc, health = beside.end()
    server = Server(folder, *flags_of(device), *ports)
    back = serves_again(server)
    server.stop()
    return Row(http, grpc, health, f"exit {status}", seconds(back)).must(status == 70, f"exit {status}") \
        .must(grpc == "3 x UNAVAILABLE", f"gRPC: {grpc}").must(http.startswith("3 x last event"), f"HTTP: {http}")


def hangs(folder, options, device, point):
    server = Server(folder, *flags_of(device), "--stall-timeout", "1s", "--faults", f"{point}=300@60")
    beside = Beside(server, length=200)
    http, grpc, health = beside.end()
    back = serves_again(server)
    stalls = total(scrape(server), "millrace_engine_stalls_total")
    server.stop()
    return Row(http, grpc, health, f"stalls {stalls:.0f}", seconds(back)).must(http == grpc == "3 x whole", "a stream broke") \
        .must("503/503/NOT_SERVING" in health and health.endswith("200/200/SERVING"), f"health: {health}").must(stalls == 1, f"{stalls:.0f} stalls")


def never_ends(folder, options, device, point):
    return device_fails(folder, options, device, point, ("--step-timeout", "2s"))


def fault(run, name, device, point, what):
    made = functools.partial(run, device=device, point=point)
    made.__name__ = name
    made.__doc__ = f"{what} ({device}: `{point}`)"
    return made


FAULTS = [fault(row_fails, "row_fake", "fake", "fake.row_error", "A row fails"),
          fault(device_fails, "device_fake", "fake", "fake.device_error", "The device fails"),
          fault(hangs, "hang_fake", "fake", "fake.hang", "A step hangs for 3 s (--stall-timeout 1s)")]
if on_a_gpu():
    FAULTS += [fault(row_fails, "row_cuda", "cuda", "cuda.nan_row", "A row's logits become NaN"),
               fault(device_fails, "device_cuda", "cuda", "cuda.device_error", "The device fails"),
               fault(never_ends, "hang_cuda", "cuda", "cuda.hang", "A step never ends (--step-timeout 2s)")]
else:
    FAULTS += [fault(row_fails, "row_cpu", "cpu", "cpu.nan_row", "A row's logits become NaN"),
               fault(device_fails, "device_cpu", "cpu", "cpu.device_error", "The device fails"),
               fault(hangs, "hang_cpu", "cpu", "cpu.hang", "A step hangs for 3 s (--stall-timeout 1s)")]
