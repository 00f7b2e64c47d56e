"""Losses of two sides that started from the same weights and tokens."""

import math


class LossMismatch(Exception):
    """Two sides do not compute the same thing, so no time of theirs compares."""


class LossBook:
    """What our ranks' losses were at each step, against which others are held."""

    def __init__(self, tolerance):
        self.tolerance = tolerance
        self.largest = {}  # of each side, the largest relative difference
        self._ours = []  # of each rank, its losses in order
        self._seen = {}

    def add_ours(self, answers):
        if not self._ours:
            self._ours = [[] for _ in answers]
        for losses, answer in zip(self._ours, answers, strict=True):
            losses.extend(answer["losses"])

    def compare(self, side, answers, up_to=math.inf):
        """Holds the side's next losses against ours of the same steps; those from
        step `up_to` on are left out. Raises LossMismatch."""
        begin = self._seen.get(side, 0)
        for rank, (ours, answer) in enumerate(zip(self._ours, answers, strict=True)):
            for step, theirs in enumerate(answer["losses"], begin):
                if step < up_to:
                    self._compare(side, rank, step, ours[step], theirs)
        self._seen[side] = begin + len(answers[0]["losses"])

    def _compare(self, side, rank, step, ours, theirs):
        numbers = all(isinstance(x, float) and math.isfinite(x) for x in (ours, theirs))
        difference = abs(ours - theirs) / abs(theirs) if numbers and theirs else math.inf
        if difference > self.tolerance:
            raise LossMismatch(
                f"[rank {rank}] step {step}: our loss is {ours}, that of {side} {theirs}, "
                f"expected a relative difference of at most {self.tolerance:g}"
            )
        self.largest[side] = max(difference, self.largest.get(side, 0.0))
