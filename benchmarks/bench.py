#!/usr/bin/env python3
"""Our training step beside those of its peers. `./run bench` sets up, builds and
starts this; docs/benchmarking.md tells what is measured and how.

usage: bench.py --build DIR --python PROGRAM [--quick] [options]
"""

import argparse
import contextlib
import datetime
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from driver import machine, micro, report, start_up  # noqa: E402
from driver.losses import LossBook, LossMismatch  # noqa: E402
from driver.rounds import pair_ratios, run_rounds  # noqa: E402
from driver.sides import ROOT, Programs, Side, SideError  # noqa: E402

SIZES = ("seed", "mid")
DTYPES = ("fp32", "bf16")
PEERS = ("fsdp2", "copies", "ddp", "zero3")
FP32_ONLY = ("ddp", "zero3")  # their mixed precision follows another policy
PARTS = ("steps", "start-up", "micro")
# So low that 50 steps do not learn the one batch by heart: losses near 0 have
# large relative differences.
LR = 5e-5
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}
MIN_ROUNDS = 5
SIDES_AT_ONCE = 2  # peers that live beside ours; more would not fit in the memory


def words(allowed):
    def parse(text):
        chosen = text.split(",")
        for word in chosen:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(allowed)}")
        return chosen

    return parse


def rank_counts(text):
    counts = [int(word) for word in text.split(",")]
    if not all(1 <= count <= 64 for count in counts):
        raise argparse.ArgumentTypeError("expected ranks from 1 to 64, as 2,4")
    return counts


def parse_arguments(argv):
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="2 ranks, FSDP2 and copies without sharding only: under 8 minutes",
    )
    parser.add_argument("--sizes", type=words(SIZES), default=list(SIZES))
    parser.add_argument("--dtypes", type=words(DTYPES), default=list(DTYPES))
    parser.add_argument("--ranks", type=rank_counts, help="default: 2,4")
    parser.add_argument("--peers", type=words(PEERS), help=f"of {','.join(PEERS)}; default: all")
    parser.add_argument("--parts", type=words(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--deepspeed-venv", type=pathlib.Path, help="a venv that holds DeepSpeed")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--check", action="store_true", help="status 1 if a bound is not met")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.steps < 1:
        parser.error("--rounds and --steps need at least 1")
    options.ranks = options.ranks or ([2] if options.quick else [2, 4])
    default_peers = ["fsdp2", "copies"] if options.quick else list(PEERS)
    if options.deepspeed_venv is None:
        if options.peers and "zero3" in options.peers:
            parser.error("zero3 needs --deepspeed-venv DIR")
        default_peers = [peer for peer in default_peers if peer != "zero3"]
    options.peers = options.peers or default_peers
    return options


def say(text):
    print(text, flush=True)


def peers_of(options, dtype):
    """Groups of peers that run beside ours at the same time."""
    peers = [p for p in options.peers if dtype == "fp32" or p not in FP32_ONLY]
    return [peers[i : i + SIDES_AT_ONCE] for i in range(0, len(peers), SIDES_AT_ONCE)]


def run_case(options, programs, folder, size, dtype, ranks, peers):
    weights = folder / f"{size}-{ranks}.safetensors"
    if not weights.exists():
        programs.export(weights, size, ranks)
    book = LossBook(TOLERANCE[dtype])
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(
                Side(
                    name,
                    programs.argv(name, ranks, size, dtype, weights, lr=LR),
                    ranks,
                    folder,
                )
            )
            for name in ["ours", *peers]
        ]
        samples = run_rounds(sides, book, options.rounds, options.steps)
    ratios = {name: pair_ratios(samples[name], samples["ours"]) for name in peers}
    result = report.case_result(size, dtype, ranks, samples, ratios, book)
    say(report.case_line(result))
    if report.was_busy(result, machine.cores()):
        say("  other work took our ranks' cores: repeat this on an idle machine")
    for bound in report.case_bounds(result):
        say(f"  {bound.what}: {bound.value:.2f}, {bound.text()}")
    return result


def measure(options, programs, folder, results):
    if "steps" in options.parts:
        for ranks in options.ranks:
            for dtype in options.dtypes:
                for size in options.sizes:
                    for peers in peers_of(options, dtype):
                        case = size, dtype, ranks, peers
                        results["cases"].append(run_case(options, programs, folder, *case))
    if "start-up" in options.parts:
        results["start_up"] = start_up.measure(programs, folder, 3, TOLERANCE["fp32"], say)
    if "micro" in options.parts:
        results["micro"] = micro.measure(programs, folder, say)


def main():
    options = parse_arguments(sys.argv[1:])
    deepspeed = options.deepspeed_venv and options.deepspeed_venv / "bin/python"
    programs = Programs(options.build, options.python, deepspeed)
    started = datetime.datetime.now()
    results = {
        "date": started.strftime("%Y-%m-%d"),
        "machine": machine.describe(programs),
        "load_before": machine.load(),
        "rounds": options.rounds,
        "block_steps": options.steps,
        "cases": [],
    }
    failure = None
    try:
        with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as folder:
            measure(options, programs, pathlib.Path(folder), results)
    except (LossMismatch, SideError) as error:
        failure = f"bench: error: {error}"
    results["load_after"] = machine.load()
    results["seconds"] = (datetime.datetime.now() - started).total_seconds()
    name = results["date"] + ("-quick" if options.quick else "")
    written = report.write(results, options.results, name)
    if failure:
        sys.exit(f"{failure}\nwhat was measured before is in {written}")
    bounds = report.all_bounds(results)
    missed = [bound for bound in bounds if not bound.met]
    say(f"{len(bounds) - len(missed)} of {len(bounds)} bounds met; wrote {written}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
