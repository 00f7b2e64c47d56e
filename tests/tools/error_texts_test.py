"""docs/errors.md against the sources: every text listed there is still thrown,
and every thrown text is listed."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
THROW = re.compile(r"\bthrow (?:fsdp::)?(?!Program)\w*Error\(")
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
# Texts of one rank that another text quotes, and mistakes of the library's own.
NOT_LISTED = (
    "cannot make a pipe",
    "Gloo needs the store's",
    "FSDP_DISABLE_SHM is set",
    "a connected rank has gone",
    "a stranger has connected",
    "rank 0 has not offered the shared region",
    "rank 0 has sent no shared region",
    "a rank's process is in another pid namespace",
    "another rank has closed its unix socket",
    "a descriptor of shared memory is not",
    "of a shared region of",
    "expected 1, 2 or 3",
    "raise ModelShape::max_seq",
    "cannot be awaited",
    "must be consumed before",
    "cannot be consumed",
)


def sources():
    files = sorted((ROOT / "src").rglob("*.cpp")) + sorted((ROOT / "src").rglob("*.h"))
    return files + sorted((ROOT / "include").rglob("*.h"))


def joined_literals(text):
    """The text with adjacent string literals made one and escapes undone."""
    text = re.sub(r'"\s*\n\s*"', "", text)
    return text.replace('\\"', '"').replace("\\n", "")


def call_at(text, start):
    """The arguments of a call whose opening bracket is before `start`."""
    depth, position = 1, start
    while depth and position < len(text):
        literal = LITERAL.match(text, position)
        if literal:
            position = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return text[start : position - 1]


def listed_texts():
    """The first cells of the tables with texts, without their quotes."""
    for line in (ROOT / "docs" / "errors.md").read_text().splitlines():
        match = re.match(r"\| `(.*)` \| ", line)
        if match and " " in match.group(1):
            yield match.group(1)


class ErrorTexts(unittest.TestCase):
    def test_every_listed_text_is_in_the_sources(self):
        words = joined_literals("\n".join(path.read_text() for path in sources()))
        listed = list(listed_texts())
        self.assertGreater(len(listed), 50)
        for text in listed:
            for part in text.split("..."):
                if len(part.strip(" ;:,.'()\"")) > 8:
                    with self.subTest(text=text, part=part):
                        self.assertTrue(part.strip() in words)

    def test_every_thrown_text_is_listed(self):
        listed = (ROOT / "docs" / "errors.md").read_text()
        number = 0
        for path in sources():
            text = path.read_text()
            for match in THROW.finditer(text):
                call = re.sub(r'"\s*\n\s*"', "", call_at(text, match.end()))
                parts = [part.replace('\\"', '"') for part in LITERAL.findall(call)]
                longest = max(parts, key=len, default="").strip(" ;:,'()")
                if len(longest) < 12 or any(word in call for word in NOT_LISTED):
                    continue
                number += 1
                with self.subTest(file=str(path.relative_to(ROOT)), text=longest):
                    self.assertTrue(longest in listed)
        self.assertGreater(number, 50)


if __name__ == "__main__":
    unittest.main()
