"""A peer's end of the line to the driver: the protocol of
benchmarks/worker/main.cpp."""

import json
import os
import resource
import socket
import time


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_block(step, num_steps):
    times, losses = [], []
    processor, begin = processor_seconds(), time.perf_counter()
    for _ in range(num_steps):
        start = time.perf_counter()
        loss = step()
        times.append((time.perf_counter() - start) * 1e3)
        losses.append(loss.item())
    return {
        "ms": times,
        "losses": losses,
        "wall_s": time.perf_counter() - begin,
        "cpu_s": processor_seconds() - processor,
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def serve(step, rank, parameters, backend):
    """Obeys the driver until it hangs up; `step` returns the loss of one step."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(os.environ["FSDP_BENCH_SOCKET"])
        commands = line.makefile("r", encoding="ascii")

        def send(message):
            line.sendall(json.dumps(message).encode() + b"\n")

        hello = {"rank": rank, "pid": os.getpid(), "parameters": parameters, "backend": backend}
        send(hello)
        for command in commands:
            words = command.split()
            if words == ["quit"]:
                return
            if len(words) != 2 or words[0] != "run":
                raise ValueError(f"unknown command {command!r} from the driver")
            send(run_block(step, int(words[1])))
