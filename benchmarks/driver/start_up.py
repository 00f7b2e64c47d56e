"""From the command to the first finished optimizer step on every rank."""

import statistics
import time

from driver.losses import LossBook
from driver.sides import Side


def first_step(programs, name, ranks, weights, folder):
    """(seconds, the step's answers)."""
    argv = programs.argv(name, ranks, "seed", "fp32", weights)
    with Side(name, argv, ranks, folder) as side:
        answers = side.run(1)
        return time.monotonic() - side.started_at, answers


def measure(programs, folder, pairs, tolerance, say):
    """The seed model on 2 ranks, `fsdp run` against torchrun with FSDP2."""
    weights = folder / "start-up.safetensors"
    programs.export(weights, "seed", 2)
    result = {"ours_s": [], "fsdp2_s": []}
    for number in range(pairs):
        names = ("ours", "fsdp2") if number % 2 == 0 else ("fsdp2", "ours")
        taken = {n: first_step(programs, n, 2, weights, folder) for n in names}
        book = LossBook(tolerance)
        book.add_ours(taken["ours"][1])
        book.compare("fsdp2", taken["fsdp2"][1])
        for name in names:
            result[name + "_s"].append(taken[name][0])
    ratios = [b / a for a, b in zip(result["ours_s"], result["fsdp2_s"], strict=True)]
    result.update(ratios=ratios, ratio=statistics.median(ratios))
    say(
        f"start-up, seed, 2 ranks: ours {statistics.median(result['ours_s']):.2f} s, "
        f"torchrun with FSDP2 {statistics.median(result['fsdp2_s']):.2f} s, "
        f"{result['ratio']:.2f}x"
    )
    return result
