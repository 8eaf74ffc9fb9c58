"""Faults of the device, by the fault points of the executors, on the fake device and on the CPU with the model."""
import functools

from beside import Beside, Row, Server, seconds, serves_again
from machine_faults import FAKE, free_ports, model
from rest import scrape, total

DEVICES = {"fake": FAKE, "cpu": model}


def flags_of(device):
    flags = DEVICES[device]
    return flags if isinstance(flags, list) else flags()


def row_fails(folder, options, device, point):
    server = Server(folder, *flags_of(device), "--faults", f"{point}=1@20")
    beside = Beside(server, length=60)
    http, grpc, health = beside.end()
    back = serves_again(server)
    errors = total(scrape(server), "vllm:request_success_total", finished_reason="error")
    server.stop()
    both = f"{http}; {grpc}"
    return Row(http, grpc, health, f"request_success{{error}} {errors:.0f}", seconds(back)) \
        .must(errors == 1, f"{errors:.0f} requests ended with an error").must(both.count("whole") == 2 and "2 x whole" in both, f"not one stream alone: {both}") \
        .must("503" not in health, "health failed")


def device_fails(folder, options, device, point):
    ports = free_ports()
    server = Server(folder, *flags_of(device), *ports, "--faults", f"{point}@60")
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


def fault(run, name, device, point, what):
    made = functools.partial(run, device=device, point=point)
    made.__name__ = name
    made.__doc__ = f"{what} ({device}: `{point}`)"
    return made


FAULTS = [fault(row_fails, "row_fake", "fake", "fake.row_error", "A row fails"),
          fault(row_fails, "row_cpu", "cpu", "cpu.nan_row", "A row's logits become NaN"),
          fault(device_fails, "device_fake", "fake", "fake.device_error", "The device fails"),
          fault(device_fails, "device_cpu", "cpu", "cpu.device_error", "The device fails"),
          fault(hangs, "hang_fake", "fake", "fake.hang", "A step hangs for 3 s (--stall-timeout 1s)"),
          fault(hangs, "hang_cpu", "cpu", "cpu.hang", "A step hangs for 3 s (--stall-timeout 1s)")]
