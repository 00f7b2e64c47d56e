"""Positive and negative controls of tools/check_docs.py."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import check_docs  # noqa: E402


class CheckDocs(unittest.TestCase):
    def messages(self, text, only_static=False):
        with tempfile.TemporaryDirectory(prefix="fsdp-docs-") as folder:
            path = pathlib.Path(folder) / "a.md"
            path.write_text(text)
            found = check_docs.check_document(path, pathlib.Path(folder), only_static)
            return [message for _, message in found if message]

    def console(self, *lines, mark="<!-- run -->"):
        return "\n".join([mark, "```console", *lines, "```", ""])

    def test_passes_what_a_command_prints(self):
        text = self.console("$ echo one; echo two  3", "one", "two 3", "$ true", "$ echo x \\", "  y", "x y")
        self.assertEqual(self.messages(text), [])

    def test_takes_any_number_any_spaces_and_skipped_lines(self):
        text = self.console("$ seq 5 7; echo 'loss  2.31, 1e-5 s'", "1", "...", "loss 1.44, 3.5 s")
        self.assertEqual(self.messages(text), [])

    def test_refuses_other_words_missing_lines_and_more_lines(self):
        for wrong in (["two 1"], ["one 1", "more"], [], ["one x"]):
            with self.subTest(wrong=wrong):
                (message,) = self.messages(self.console("$ echo one 7", *wrong))
                self.assertIn("'echo one 7' does not print line", message)
        (message,) = self.messages(self.console("$ echo a; echo b", "a", "c"))
        self.assertIn("does not print line 'c' there", message)

    def test_refuses_a_command_that_fails(self):
        (message,) = self.messages(self.console("$ echo a; exit 3", "a"))
        self.assertIn("ended with status 3", message)

    def test_runs_another_command_instead(self):
        text = self.console("$ train --minutes 3", "done", mark='<!-- run instead="echo done" -->')
        self.assertEqual(self.messages(text), [])
        self.assertEqual(len(self.messages(text.replace("echo done", "echo gone"))), 1)

    def test_leaves_commands_alone_when_told_and_unmarked_blocks_always(self):
        self.assertEqual(self.messages(self.console("$ exit 1"), only_static=True), [])
        self.assertEqual(self.messages(self.console("$ exit 1", mark="")), [])

    def test_compares_a_block_with_a_file(self):
        license_lines = (check_docs.ROOT / "LICENSE").read_text().rstrip("\n").split("\n")
        text = "\n".join(["<!-- file LICENSE -->", "```text", *license_lines, "```"])
        self.assertEqual(self.messages(text), [])
        self.assertEqual(self.messages(text.replace("Copyright", "Copyleft")), ["differs from LICENSE"])
        self.assertEqual(
            self.messages(text.replace("LICENSE", "NOWHERE")), ["there is no file NOWHERE"]
        )

    def test_compares_a_table_with_what_a_command_prints(self):
        text = "<!-- output-of printf '|a|\\n|-|\\n|1|\\n' -->\n\n|a|\n|-|\n|1|\n\nafter\n"
        self.assertEqual(self.messages(text), [])
        (message,) = self.messages(text.replace("|1|\n\n", "|2|\n\n"))
        self.assertIn("differs from what", message)

    def test_follows_relative_links(self):
        self.assertEqual(self.messages("[a](a.md#x) [b](#y) [c](https://example.org)"), [])
        self.assertEqual(self.messages("[a](b.md)"), ["the link to b.md leads nowhere"])


if __name__ == "__main__":
    unittest.main()
