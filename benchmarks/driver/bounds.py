"""What must hold, and whether it does."""

from dataclasses import dataclass

# FSDP2's median step over ours.
FSDP2_ON_TWO_RANKS = {
    ("seed", "fp32"): 1.6,
    ("mid", "fp32"): 2.0,
    ("seed", "bf16"): 1.6,
    ("mid", "bf16"): 2.1,
}
FOUR_RANKS = 0.9  # of the factors on two
OVER_COPIES = 1.08  # our step over that of copies without sharding, two ranks
PROCESSOR_SHARE = 1.02  # a rank of ours uses one thread
START_UP = 4.0  # torchrun's time to the first step over ours
UNIT_US = {1: 25.0, 2: 100.0}  # of a small unit and step, by ranks


@dataclass
class Bound:
    what: str
    value: float
    limit: float
    at_least: bool

    @property
    def met(self):
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def text(self):
        sign = "at least" if self.at_least else "at most"
        return f"{sign} {self.limit:g}: {'met' if self.met else 'NOT MET'}"


def case_name(size, dtype, ranks):
    return f"{size}, {dtype}, {ranks} ranks"


def of_case(size, dtype, ranks, peer, ratio):
    """The bound on a peer's ratio (theirs over ours) in one case; None: there is
    none."""
    what = case_name(size, dtype, ranks)
    if peer == "fsdp2" and ranks in (2, 4):
        limit = FSDP2_ON_TWO_RANKS[size, dtype] * (1 if ranks == 2 else FOUR_RANKS)
        return Bound(f"FSDP2 over ours, {what}", ratio, round(limit, 3), True)
    if peer == "copies" and ranks == 2:
        return Bound(f"ours over copies, {what}", 1 / ratio, OVER_COPIES, False)
    return None


def of_processor(size, dtype, ranks, share):
    what = f"processor time over wall time, {case_name(size, dtype, ranks)}"
    return Bound(what, share, PROCESSOR_SHARE, False)
