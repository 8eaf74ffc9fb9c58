"""Does to real servers what machines and operators do, and prints a table of what clients see.

    python tests/soak/faults.py [--only NAME,...] [--terms 100] [--list]

Each fault meets a server with three streams of each protocol. The columns: how those ended, over HTTP and over gRPC; what /livez, /readyz
and gRPC's health said meanwhile, in their order; metrics and exit status; the seconds until a completion succeeds again, from the end of
the fault, or from the restart that a supervisor would make. Ends with status 1 if a fault did more harm than it must.
"""
import argparse
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # of this process's clients, which tell of each GOAWAY
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

import device_faults  # noqa: E402
import machine_faults  # noqa: E402
from beside import Server  # noqa: E402


def run(fault, folder, options):
    """Returns a line of the table, and what is wrong."""
    try:
        row = fault(folder, options)
    except Exception as error:  # a fault that the script does not survive is a finding, and the others are still run
        return f"| {fault.__doc__} | {type(error).__name__}: {error} | | | | |", [f"{type(error).__name__}: {error}"]
    finally:
        Server.stop_all()
    return f"| {fault.__doc__} | {row.http} | {row.grpc} | {row.health} | {row.metrics} | {row.back} |", row.wrong


def main():
    faults = {fault.__name__: fault for module in (machine_faults, device_faults) for fault in module.FAULTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(faults), type=lambda names: names.split(","))
    parser.add_argument("--terms", type=int, default=100, help="how often a server is ended under streams")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:20} {fault.__doc__}" for name, fault in faults.items()))
        return 0
    problems = []
    print("| fault | HTTP clients | gRPC clients | livez/readyz/gRPC health | metrics, exit status | serves again |\n|---|---|---|---|---|---|")
    for name in options.only:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"millrace-{name}-"))
        line, wrong = run(faults[name], folder, options)
        print(line, flush=True)
        problems += [f"{name}: {what}; its log is in {folder}" for what in wrong]
        if not wrong:
            shutil.rmtree(folder)
    print("\n" + ("\n".join(f"WRONG {problem}" for problem in problems) or "no fault did more harm than it must"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
