"""Interleaved blocks: every round runs each side once, every second one in the
other order, so that a drift of the machine meets all sides alike."""

import statistics
from dataclasses import dataclass, field

WARM_UP_STEPS = 3


@dataclass
class Samples:
    """What one side did: per block, of each rank, what its worker answered."""

    blocks: list = field(default_factory=list)

    def step_ms(self, block):
        """The median over ranks and steps."""
        return statistics.median(ms for answer in self.blocks[block] for ms in answer["ms"])

    def median_ms(self):
        return statistics.median(self.step_ms(block) for block in range(len(self.blocks)))

    def processor_share(self):
        """Of each rank, its processor time over its wall time."""
        ranks = zip(*self.blocks, strict=True)
        return [sum(a["cpu_s"] for a in rank) / sum(a["wall_s"] for a in rank) for rank in ranks]

    def processor_ms(self):
        """Of a step, the mean over ranks: what load from elsewhere disturbs least."""
        answers = [answer for block in self.blocks for answer in block]
        return 1e3 * sum(a["cpu_s"] for a in answers) / sum(len(a["ms"]) for a in answers)

    def max_rss_mb(self):
        return max(answer["max_rss_mb"] for answer in self.blocks[-1])


def pair_ratios(theirs, ours):
    """Their step time over ours, of each round."""
    return [theirs.step_ms(i) / ours.step_ms(i) for i in range(len(ours.blocks))]


def run_rounds(sides, book, num_rounds, block_steps):
    """Samples by name. The first of `sides` is ours. Losses of a round are compared
    as soon as it is over; those of copies, which train on their own tokens alone,
    of the very first step only."""
    samples = {side.name: Samples() for side in sides}
    for number in range(-1, num_rounds):
        is_warm_up = number < 0
        ordered = sides if number % 2 == 0 else sides[::-1]
        steps = WARM_UP_STEPS if is_warm_up else block_steps
        answers = {side.name: side.run(steps) for side in ordered}
        book.add_ours(answers[sides[0].name])
        for side in sides[1:]:
            only_first = side.name == "copies"
            book.compare(side.name, answers[side.name], **({"up_to": 1} if only_first else {}))
        if not is_warm_up:
            for name, answer in answers.items():
                samples[name].blocks.append(answer)
    return samples
