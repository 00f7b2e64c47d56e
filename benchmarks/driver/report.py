"""The results as JSON with every sample, and as tables."""

import json
import statistics

from driver import bounds

BUSY_SHARE = 0.9  # of a core, below which a rank has not had one of its own

NAMES = {
    "ours": "ours",
    "copies": "copies without sharding",
    "fsdp2": "FSDP2",
    "ddp": "DDP",
    "zero3": "ZeRO-3",
}


def case_result(size, dtype, ranks, samples, ratios, book):
    ours = samples["ours"]
    result = {
        "size": size,
        "dtype": dtype,
        "ranks": ranks,
        "sides": {},
        "loss_tolerance": book.tolerance,
    }
    for name, side in samples.items():
        result["sides"][name] = {
            "step_ms": side.median_ms(),
            "processor_ms": side.processor_ms(),
            "processor_share": side.processor_share(),
            "max_rss_mb": side.max_rss_mb(),
            "blocks": side.blocks,
        }
        if name != "ours":
            result["sides"][name]["pair_ratios"] = ratios[name]
            result["sides"][name]["ratio"] = statistics.median(ratios[name])
            result["sides"][name]["largest_loss_difference"] = book.largest[name]
    result["processor_share"] = max(ours.processor_share())
    return result


def case_key(result):
    return result["size"], result["dtype"], result["ranks"]


def case_bounds(result):
    key = case_key(result)
    found = [
        bounds.of_case(*key, name, side["ratio"])
        for name, side in result["sides"].items()
        if name != "ours"
    ]
    found.append(bounds.of_processor(*key, result["processor_share"]))
    return [bound for bound in found if bound]


def was_busy(result, cores):
    """Other work took our ranks' cores away, so that no time of the case compares:
    ranks wait for one another whole time slices."""
    shares = result["sides"]["ours"]["processor_share"]
    return result["ranks"] <= cores and min(shares) < BUSY_SHARE


def case_line(result):
    sides = result["sides"]
    parts = [f"ours {sides['ours']['step_ms']:.1f} ms"]
    for name, side in sides.items():
        if name != "ours":
            low, high = min(side["pair_ratios"]), max(side["pair_ratios"])
            parts.append(
                f"{NAMES[name]} {side['step_ms']:.1f} ms, "
                f"{side['ratio']:.2f}x ({low:.2f} to {high:.2f})"
            )
    shares = ", ".join(f"{share:.2f}" for share in sides["ours"]["processor_share"])
    head = bounds.case_name(*case_key(result)) + ": "
    return head + "; ".join(parts) + f"; processor over wall time of our ranks {shares}"


def all_bounds(results):
    worst = {}  # a case with many peers was run more than once
    for bound in (bound for case in results["cases"] for bound in case_bounds(case)):
        if bound.what not in worst or worst[bound.what].met:
            worst[bound.what] = bound
    found = list(worst.values())
    if "start_up" in results:
        ratio = results["start_up"]["ratio"]
        what = "start-up: torchrun with FSDP2 over ours, seed, 2 ranks"
        found.append(bounds.Bound(what, ratio, bounds.START_UP, True))
    for ranks, us in results.get("micro", {}).get("unit_us", {}).items():
        what = f"us of a small unit and step, {ranks} rank(s)"
        found.append(bounds.Bound(what, us, bounds.UNIT_US[int(ranks)], False))
    return found


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _case_rows(case):
    for name, side in case["sides"].items():
        ratio = spread = difference = "-"
        if name != "ours":
            ratio = f"{side['ratio']:.2f}"
            spread = f"{min(side['pair_ratios']):.2f} to {max(side['pair_ratios']):.2f}"
            difference = f"{side['largest_loss_difference']:.1e}"
        yield [
            bounds.case_name(*case_key(case)),
            NAMES[name],
            f"{side['step_ms']:.1f}",
            ratio,
            spread,
            f"{side['processor_ms']:.1f}",
            f"{max(side['processor_share']):.2f}",
            f"{side['max_rss_mb']:.0f}",
            difference,
        ]


def markdown(results):
    machine = results["machine"]
    lines = [
        f"# Benchmarks of {results['date']}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}; torch {machine['torch']}, {machine['fsdp']} at "
        f"{machine['commit']}; {machine['threads_per_rank']} thread a rank. Load before "
        f"{results['load_before'][0]}, after {results['load_after'][0]} (one minute's mean).",
        "",
        f"{results['rounds']} rounds of {results['block_steps']} steps. A ratio is the "
        "median over the rounds of the peer's step over ours. docs/benchmarking.md tells "
        "how to read this.",
        "",
        "## Bounds",
        "",
    ]
    rows = [[b.what, f"{b.value:.2f}", b.text()] for b in all_bounds(results)]
    lines += _table(["what", "measured", "bound"], rows)
    busy = [case for case in results["cases"] if was_busy(case, machine["cores"])]
    for case in busy:
        key = bounds.case_name(*case_key(case))
        lines += ["", f"Other work took our ranks' cores in {key}: repeat it on an idle machine."]
    if results["cases"]:
        head = ["case", "side", "step, ms", "over ours", "of the rounds"]
        head += ["processor, ms", "over wall", "peak resident, MB", "loss differs by"]
        rows = [row for case in results["cases"] for row in _case_rows(case)]
        lines += ["", "## Steps", "", *_table(head, rows)]
    if "start_up" in results:
        found = results["start_up"]
        head = ["side", "to the first step, s"]
        rows = [
            [NAMES[name], ", ".join(f"{s:.2f}" for s in found[name + "_s"])]
            for name in ("ours", "fsdp2")
        ]
        lines += ["", "## Start-up", "", *_table(head, rows)]
    if "micro" in results:
        head = ["benchmark", "ranks", "us", "processor, us"]
        rows = [
            [entry["name"], str(entry["ranks"]), f"{entry['us']:.1f}", f"{entry['processor_us']:.1f}"]
            for entry in results["micro"]["entries"]
        ]
        lines += ["", "## Micro-benchmarks", "", *_table(head, rows)]
    return "\n".join(lines) + "\n"


def write(results, folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / f"{name}.md"
    text.write_text(markdown(results))
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    return text
