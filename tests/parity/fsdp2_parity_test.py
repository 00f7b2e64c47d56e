"""Sharded training beside PyTorch FSDP2: the same weights and batches, and after
each of 20 AdamW steps the same loss on every rank.

usage: fsdp2_parity_test.py BUILD PYTHON
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
from driver.losses import LossBook, LossMismatch  # noqa: E402
from driver.sides import Programs, Side  # noqa: E402

BUILD, PYTHON = None, None  # from the command line
STEPS = 20
# Less than the seed model has, for time.
VOCAB = 1000
BATCH = 2
TOLERANCE = {"fp32": 5e-6, "bf16": 2e-3}


class Fsdp2Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        check = [PYTHON, "-c", "import safetensors, torch"]
        if not shutil.which(PYTHON) or subprocess.run(check, capture_output=True).returncode:
            raise AssertionError(
                f"FSDP_PYTHON={PYTHON} is no Python with torch and safetensors: "
                "./run test installs one"
            )
        scratch = tempfile.TemporaryDirectory(prefix="fsdp-parity-")
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.programs = Programs(BUILD, PYTHON)
        cls.weights = cls.folder / "start.safetensors"
        cls.programs.export(cls.weights, "seed", 4, VOCAB, BATCH)

    def losses(self, side, ranks, dtype):
        argv = self.programs.argv(side, ranks, "seed", dtype, self.weights, VOCAB)
        with Side(side, argv, ranks, self.folder) as workers:
            return workers.run(STEPS)

    def compare(self, ranks, dtype):
        book = LossBook(TOLERANCE[dtype])
        ours = self.losses("ours", ranks, dtype)
        theirs = self.losses("fsdp2", ranks, dtype)
        book.add_ours(ours)
        book.compare("FSDP2", theirs)
        print(f"{ranks} ranks, {dtype}: {book.largest['FSDP2']:.1e} of {book.tolerance:g}")
        for answer in ours:  # losses that stand still would prove little
            self.assertLess(answer["losses"][-1], 0.9 * answer["losses"][0])
        self.assertNotEqual(ours[0]["losses"], ours[1]["losses"])
        return book, theirs

    def test_two_ranks_in_fp32(self):
        book, theirs = self.compare(2, "fp32")
        # The comparison itself: the ranks the other way round do not agree.
        book = LossBook(TOLERANCE["fp32"])
        book.add_ours(theirs)
        with self.assertRaises(LossMismatch):
            book.compare("FSDP2", theirs[::-1])

    def test_four_ranks_in_fp32(self):
        self.compare(4, "fp32")

    def test_two_ranks_in_bf16(self):
        self.compare(2, "bf16")

    def test_four_ranks_in_bf16(self):
        self.compare(4, "bf16")


if __name__ == "__main__":
    BUILD, PYTHON = sys.argv[1:3]
    del sys.argv[1:3]
    unittest.main()
