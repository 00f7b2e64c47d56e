"""What a run was measured on."""

import os
import pathlib
import platform
import re
import subprocess

from driver.sides import ROOT


def _first_match(path, pattern):
    try:
        match = re.search(pattern, pathlib.Path(path).read_text())
    except OSError:
        return None
    return match.group(1).strip() if match else None


def _output(*argv):
    result = subprocess.run([str(a) for a in argv], capture_output=True, text=True, cwd=ROOT)
    return result.stdout.strip() if result.returncode == 0 else None


def cores():
    return len(os.sched_getaffinity(0))


def describe(programs):
    versions = "import torch; print(torch.__version__)"
    kb = _first_match("/proc/meminfo", r"MemTotal: *(\d+)")
    return {
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*: (.*)") or platform.processor(),
        "cores": cores(),
        "memory_gib": round(int(kb) / 2**20, 1) if kb else None,
        "kernel": platform.release(),
        "threads_per_rank": 1,
        "torch": _output(programs.python, "-W", "ignore", "-c", versions),
        "fsdp": _output(programs.build / "bin/fsdp", "--version"),
        "commit": _output("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "deepspeed": programs.deepspeed_python
        and _output(
            programs.deepspeed_python,
            "-c",
            "import importlib.metadata as m; print(m.version('deepspeed'))",
        ),
    }


def load():
    return [round(x, 2) for x in os.getloadavg()]
