"""The micro-benchmarks (benchmarks/micro, Google Benchmark): rank 0 of each job
writes its figures as JSON."""

import json
import statistics
import subprocess

from driver.sides import SideError

NUM_UNITS = 100
US_OF = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
TIMEOUT_S = 300


def run(programs, ranks, folder):
    """Google Benchmark's report of a job of that many ranks."""
    out = folder / f"micro-{ranks}.json"
    argv = [programs.build / "bin/fsdp", "run", "-n", ranks, "--"]
    argv += [programs.build / "bin/fsdp_micro_benchmark", f"--benchmark_out={out}"]
    try:
        result = subprocess.run(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise SideError(f"fsdp_micro_benchmark on {ranks} ranks: {error}") from error
    if result.returncode != 0:
        raise SideError(f"fsdp_micro_benchmark on {ranks} ranks failed:\n{result.stderr}")
    return json.loads(out.read_text())


def figures(report, time="real_time"):
    """Median over the repetitions of each benchmark, in microseconds; "cpu_time" is
    the processor's."""
    samples = {}
    for entry in report["benchmarks"]:
        if entry["run_type"] == "iteration":
            name = entry["run_name"].split("/iterations:")[0]
            samples.setdefault(name, []).append(entry[time] * US_OF[entry["time_unit"]])
    return {name: statistics.median(times) for name, times in samples.items()}


def unit_us(found):
    """What a small unit costs a step: the sharded step less the plain one."""
    return (found["hundred_units/sharded"] - found["hundred_units/plain"]) / NUM_UNITS


def measure(programs, folder, say):
    result = {"entries": [], "unit_us": {}, "unit_processor_us": {}}
    for ranks in (1, 2):
        report = run(programs, ranks, folder)
        found, processor = figures(report), figures(report, "cpu_time")
        result["unit_us"][ranks] = unit_us(found)
        result["unit_processor_us"][ranks] = unit_us(processor)
        result["entries"] += [
            {"name": name, "ranks": ranks, "us": us, "processor_us": processor[name]}
            for name, us in found.items()
        ]
        say(
            f"a unit of Linear(8, 8), {ranks} rank(s): {unit_us(found):.1f} us a step, "
            f"{unit_us(processor):.1f} us of the processor"
        )
    return result
