"""The parts of the benchmarks' driver that need no LibTorch: what it compares,
which numbers it takes, what it writes, and what it does when a side fails."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import bench  # noqa: E402
from driver import bounds, micro, report  # noqa: E402
from driver.losses import LossBook, LossMismatch  # noqa: E402
from driver.rounds import Samples, pair_ratios, run_rounds  # noqa: E402
from driver.sides import Programs, Side, SideError  # noqa: E402

# A side's rank that answers the driver at once, or misbehaves as its last
# argument says.
WORKER = """
import json, os, socket, sys
rank, manner = int(sys.argv[1]), sys.argv[2]
if manner == "absent":
    sys.exit("cannot begin")
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["FSDP_BENCH_SOCKET"])
line.sendall(json.dumps({"rank": rank, "pid": os.getpid()}).encode() + b"\\n")
step = 0
for command in line.makefile():
    if command == "quit\\n":
        break
    if manner == "dies":
        sys.exit("out of cheese")
    steps = int(command.split()[1])
    losses = [8.0 + rank - 0.1 * (step + i) for i in range(steps)]
    step += steps
    if manner == "wrong" and rank == 1 and step > 4:
        losses[-1] += 1e-3
    if manner == "nan":
        losses[0] = None
    answer = {"ms": [float(manner)] * steps if manner.isdigit() else [1.0] * steps,
              "losses": losses, "cpu_s": 0.5, "wall_s": 1.0, "max_rss_mb": 100.0}
    line.sendall(json.dumps(answer).encode() + b"\\n")
"""


def answer(ms, losses, cpu=1.0, wall=1.0):
    return {"ms": ms, "losses": losses, "cpu_s": cpu, "wall_s": wall, "max_rss_mb": 50.0}


class Losses(unittest.TestCase):
    def book(self, tolerance=1e-5):
        book = LossBook(tolerance)
        book.add_ours([answer([], [2.0, 1.0]), answer([], [4.0, 3.0])])
        return book

    def test_that_agree_are_taken_and_the_largest_difference_kept(self):
        book = self.book()
        book.compare("x", [answer([], [2.0]), answer([], [4.0])])
        book.compare("x", [answer([], [1.0]), answer([], [3.0 + 6e-6])])
        self.assertAlmostEqual(book.largest["x"], 2e-6, 8)

    def test_that_differ_name_rank_step_and_both(self):
        book = self.book()
        book.compare("x", [answer([], [2.0]), answer([], [4.0])])
        with self.assertRaises(LossMismatch) as raised:
            book.compare("x", [answer([], [1.0]), answer([], [3.1])])
        self.assertEqual(
            str(raised.exception),
            "[rank 1] step 1: our loss is 3.0, that of x 3.1, "
            "expected a relative difference of at most 1e-05",
        )

    def test_that_are_no_numbers_differ(self):
        for bad in (None, float("nan"), float("inf"), "1"):
            with self.subTest(bad=bad), self.assertRaises(LossMismatch):
                self.book().compare("x", [answer([], [2.0]), answer([], [bad])])

    def test_of_copies_count_for_the_first_step_only(self):
        book = self.book()
        book.compare("copies", [answer([], [2.0, 9.0]), answer([], [4.0, 9.0])], up_to=1)
        with self.assertRaises(LossMismatch):
            self.book().compare("copies", [answer([], [2.1]), answer([], [4.0])], up_to=1)

    def test_of_another_number_of_ranks_are_an_error(self):
        with self.assertRaises(ValueError):
            self.book().compare("x", [answer([], [2.0])])


class Numbers(unittest.TestCase):
    def test_a_block_is_the_median_over_ranks_and_steps_and_a_ratio_one_of_a_round(self):
        ours = Samples([[answer([1, 2, 9], []), answer([2, 3, 2], [])], [answer([4], []), answer([4], [])]])
        theirs = Samples([[answer([6, 6, 6], []), answer([6, 6, 6], [])], [answer([6], []), answer([6], [])]])
        self.assertEqual(ours.step_ms(0), 2)
        self.assertEqual(ours.median_ms(), 3)
        self.assertEqual(pair_ratios(theirs, ours), [3, 1.5])

    def test_processor_time_is_kept_by_rank(self):
        blocks = [[answer([1], [], 1.0, 2.0), answer([1], [], 2.0, 2.0)]] * 3
        self.assertEqual(Samples(blocks).processor_share(), [0.5, 1.0])
        self.assertEqual(Samples(blocks).processor_ms(), 1500)

    def test_bounds_are_those_of_the_case(self):
        self.assertTrue(bounds.of_case("mid", "bf16", 2, "fsdp2", 2.1).met)
        self.assertFalse(bounds.of_case("mid", "bf16", 2, "fsdp2", 2.09).met)
        self.assertEqual(bounds.of_case("seed", "fp32", 4, "fsdp2", 2).limit, 1.44)
        self.assertTrue(bounds.of_case("seed", "fp32", 2, "copies", 1 / 1.07).met)
        self.assertFalse(bounds.of_case("seed", "fp32", 2, "copies", 1 / 1.09).met)
        self.assertIsNone(bounds.of_case("seed", "fp32", 4, "copies", 0.5))
        self.assertIsNone(bounds.of_case("seed", "fp32", 2, "ddp", 0.5))
        self.assertFalse(bounds.of_processor("seed", "fp32", 2, 1.03).met)

    def test_a_units_cost_is_the_difference_of_medians(self):
        def entry(name, us, kind="iteration"):
            return {"run_name": name + "/iterations:3/repeats:3/real_time", "run_type": kind,
                    "real_time": us / 1e3, "time_unit": "ms"}

        found = micro.figures({"benchmarks": [
            *[entry("hundred_units/plain", us) for us in (1000, 900, 5000)],
            *[entry("hundred_units/sharded", us) for us in (3000, 3100, 2900)],
            entry("hundred_units/sharded", 1, "aggregate"),
        ]})
        self.assertAlmostEqual(micro.unit_us(found), 20)


class Sides(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="fsdp-bench-test-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "worker.py").write_text(textwrap.dedent(WORKER))

    def side(self, name, manner, ranks=2):
        command = " & ".join(
            f"{sys.executable} {self.folder}/worker.py {rank} {manner}" for rank in range(ranks)
        )
        return Side(name, ["sh", "-c", command + " & wait"], ranks, self.folder)

    def rounds(self, **manners):
        book = LossBook(1e-5)
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(self.side(n, m)) for n, m in manners.items()]
            return run_rounds(sides, book, 3, 2), book

    def processes(self):
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        return [line for line in listed.splitlines() if f"{self.folder}/worker.py" in line]

    def test_give_ratios_of_blocks_and_leave_nothing_behind(self):
        samples, book = self.rounds(ours="2", fsdp2="5", copies="wrong")
        self.assertEqual(pair_ratios(samples["fsdp2"], samples["ours"]), [2.5] * 3)
        self.assertEqual(len(samples["ours"].blocks), 3)
        self.assertEqual(book.largest["fsdp2"], 0)
        self.assertEqual(self.processes(), [])

    def test_that_compute_something_else_give_no_time(self):
        for manner, step in (("wrong", 4), ("nan", 0)):
            with self.subTest(manner=manner), self.assertRaises(LossMismatch) as raised:
                self.rounds(ours="2", fsdp2=manner)
            self.assertIn(f"step {step}: our loss is ", str(raised.exception))
        self.assertEqual(self.processes(), [])

    def test_that_end_are_named_with_their_last_words(self):
        with self.assertRaises(SideError) as raised:
            self.rounds(ours="2", fsdp2="dies")
        self.assertIn("fsdp2: a rank has hung up; its last output:", str(raised.exception))
        with self.assertRaises(SideError) as raised:
            self.rounds(ours="absent")
        self.assertIn("ours: ended with status", str(raised.exception))
        self.assertIn("cannot begin", str(raised.exception))
        self.assertEqual(self.processes(), [])


class Results(unittest.TestCase):
    def results(self):
        blocks = [[answer([2.0] * 3, []), answer([2.0] * 3, [])]] * 5
        samples = {"ours": Samples(blocks), "fsdp2": Samples(blocks), "copies": Samples(blocks)}
        book = LossBook(1e-5)
        book.largest = {"fsdp2": 1e-7, "copies": 0.0}
        ratios = {"fsdp2": [1.5, 1.7, 1.8, 1.6, 2.0], "copies": [0.9, 1, 1, 1, 1.1]}
        machine = {"cpu": "a CPU", "cores": 2, "memory_gib": 8, "kernel": "6", "torch": "2.13.0",
                   "fsdp": "fsdp 0.1.0", "commit": "abc", "threads_per_rank": 1}
        return {
            "date": "2026-01-02", "machine": machine, "load_before": [0.1], "load_after": [2.0],
            "rounds": 5, "block_steps": 3,
            "cases": [report.case_result("seed", "fp32", 2, samples, ratios, book)],
            "start_up": {"ours_s": [1.0], "fsdp2_s": [3.0], "ratios": [3.0], "ratio": 3.0},
            "micro": {"unit_us": {1: 9.0, 2: 60.0}, "entries": [{"name": "barrier", "ranks": 2, "us": 3.0, "processor_us": 2.0}]},
        }

    def test_hold_every_sample_and_the_tables_the_bounds(self):
        with tempfile.TemporaryDirectory() as folder:
            text = report.write(self.results(), pathlib.Path(folder), "x").read_text()
            stored = json.loads((pathlib.Path(folder) / "x.json").read_text())
        self.assertEqual(len(stored["cases"][0]["sides"]["fsdp2"]["blocks"]), 5)
        for line in (
            "| FSDP2 over ours, seed, fp32, 2 ranks | 1.70 | at least 1.6: met |",
            "| ours over copies, seed, fp32, 2 ranks | 1.00 | at most 1.08: met |",
            "| start-up: torchrun with FSDP2 over ours, seed, 2 ranks | 3.00 | at least 4: NOT MET |",
            "| us of a small unit and step, 2 rank(s) | 60.00 | at most 100: met |",
            "| barrier | 2 | 3.0 | 2.0 |",
        ):
            self.assertIn(line, text.splitlines())

    def test_say_when_the_ranks_had_no_core_of_their_own(self):
        case = self.results()["cases"][0]
        self.assertFalse(report.was_busy(case, cores=2))
        case["sides"]["ours"]["processor_share"] = [0.5, 1.0]
        self.assertTrue(report.was_busy(case, cores=2))
        self.assertFalse(report.was_busy(case, cores=1))


class CommandLine(unittest.TestCase):
    def parse(self, *argv):
        return bench.parse_arguments(["--build", "b", "--python", "p", *argv])

    def test_quick_is_two_ranks_fsdp2_and_copies(self):
        quick, full = self.parse("--quick"), self.parse()
        self.assertEqual((quick.ranks, quick.peers, quick.rounds), ([2], ["fsdp2", "copies"], 5))
        self.assertEqual((full.ranks, full.peers), ([2, 4], ["fsdp2", "copies", "ddp"]))
        venv = self.parse("--deepspeed-venv", "v")
        self.assertEqual(venv.peers[-1], "zero3")
        self.assertEqual(bench.peers_of(venv, "bf16"), [["fsdp2", "copies"]])
        self.assertEqual(bench.peers_of(venv, "fp32"), [["fsdp2", "copies"], ["ddp", "zero3"]])

    def test_what_is_unknown_is_refused(self):
        for wrong in (["--sizes", "big"], ["--ranks", "0"], ["--peers", "zero3"], ["--rounds", "0"]):
            with self.subTest(wrong=wrong), self.assertRaises(SystemExit):
                with contextlib.redirect_stderr(io.StringIO()):
                    self.parse(*wrong)

    def test_each_side_is_started_by_its_own_launcher(self):
        programs = Programs("b", "p", "d")
        ours = programs.argv("copies", 2, "mid", "bf16", "w")
        self.assertEqual([str(w) for w in ours[:4]], ["b/bin/fsdp", "run", "-n", "2"])
        self.assertIn("copy", ours)
        self.assertEqual(programs.argv("fsdp2", 2, "mid", "bf16", "w")[0], "p")
        self.assertEqual(programs.argv("zero3", 2, "mid", "fp32", "w")[0], "d")


if __name__ == "__main__":
    unittest.main()
