"""tools/mutate on a list of its own: what it refuses and what it prints."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "mutate"
FAULT = {
    "name": "a",
    "fault": "rounds down",
    "file": "src/core/shard_math.h",
    "old": "(rows + world - 1) / world",
    "new": "rows / world",
    "target": "shard_math_test",
    "test": "^shard_math_test$",
}


class Mutate(unittest.TestCase):
    def call(self, faults, *arguments):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(faults, file)
            file.flush()
            return subprocess.run(
                [sys.executable, str(TOOL), "--file", file.name, *arguments],
                capture_output=True,
                text=True,
                timeout=60,
            )

    def expect_error(self, faults, text, *arguments):
        result = self.call(faults, "--check", *arguments)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, f"mutate: {text}\n")

    def test_checks_that_faults_fit_the_tree(self):
        result = self.call([FAULT], "--check")
        self.assertEqual((result.returncode, result.stdout), (0, "1 faults fit the tree\n"))

    def test_refuses_text_that_is_not_there_exactly_once(self):
        self.expect_error(
            [FAULT | {"old": "no such text"}],
            "a: its old text is 0 times in src/core/shard_math.h, expected once",
        )
        result = self.call([FAULT | {"old": "rows"}], "--check")
        self.assertIn("times in src/core/shard_math.h, expected once", result.stderr)

    def test_refuses_a_list_with_slips(self):
        self.expect_error([FAULT, FAULT], "a: listed twice")
        self.expect_error([FAULT | {"new": FAULT["old"]}], "a: changes nothing")
        self.expect_error([FAULT | {"tets": "x"}], "a: missing [], unknown ['tets']")
        self.expect_error([FAULT], "no fault is named b", "--only", "b")

    def test_prints_the_faults_as_a_table(self):
        result = self.call([FAULT, FAULT | {"name": "b", "filter": "X.Y*"}], "--table")
        self.assertEqual(
            result.stdout,
            "| fault | in | caught by |\n|---|---|---|\n"
            "| rounds down (`a`) | `src/core/shard_math.h` | `^shard_math_test$` |\n"
            "| rounds down (`b`) | `src/core/shard_math.h` | `^shard_math_test$` `X.Y*` |\n",
        )


if __name__ == "__main__":
    unittest.main()
