#!/usr/bin/env python3
"""Runs the command blocks of the documents and compares what they print.

usage: check_docs.py [--build DIR] [--only-static] [FILE...]

Marks in Markdown, each on the line before a fenced block:
  <!-- run -->                 a `console` block: lines after `$ ` are commands,
                               the lines below each are what it prints
  <!-- run instead="CMD" -->   runs CMD in place of the block's one command
  <!-- file PATH -->           the block is that file of the tree, word for word
  <!-- output-of CMD -->       the block (or the table below) is what CMD prints,
                               word for word

In expected output a number stands for any number, a run of spaces for any run,
and a line `...` for any lines. Commands run in the root of the tree with
`build/release` read as the folder of --build. Relative links must lead
somewhere.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NUMBER = re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", re.I)
MARK = re.compile(r"^<!-- (run|file|output-of)\b ?(.*?) ?-->$")
TIMEOUT_SECONDS = 300


class Block:
    def __init__(self, kind, argument, line, text):
        self.kind, self.argument, self.line, self.text = kind, argument, line, text


def blocks(text):
    """The marked blocks: fenced, or for output-of also a table."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        mark = MARK.match(line)
        if not mark:
            continue
        body = index + 1
        while body < len(lines) and not lines[body].strip():
            body += 1
        end = body
        if body < len(lines) and lines[body].startswith("```"):
            body += 1
            end = body
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
        else:
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
        yield Block(mark.group(1), mark.group(2), index + 1, lines[body:end])


def pattern_of(expected):
    """A regular expression for the expected lines; see the head of this file."""
    parts = []
    for line in expected:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
            continue
        words = []
        for word in line.split():
            pieces, last = [], 0
            for number in NUMBER.finditer(word):
                pieces.append(re.escape(word[last : number.start()]))
                pieces.append(NUMBER.pattern)
                last = number.end()
            words.append("".join(pieces) + re.escape(word[last:]))
        parts.append(r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n")
    return re.compile("".join(parts) + r"\Z", re.I)


def first_difference(expected, actual):
    """The longest start of `expected` that fits, to say where it ends."""
    for number in range(len(expected), 0, -1):
        prefix = pattern_of(expected[:number]).pattern[:-2]
        if re.match(prefix, actual, re.I):
            return expected[number] if number < len(expected) else "(the end)"
    return expected[0] if expected else "(nothing)"


def commands(block):
    """(command, expected lines) of a console block."""
    found = []
    for line in block.text:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1] + line.strip(), [])
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError("a console block begins with '$ '")
    return found


def run_command(command, build):
    """What it prints on both outputs, and its exit status."""
    command = command.replace("build/release", str(build))
    environment = dict(os.environ, TERM="dumb", COLUMNS="80")
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    return result.stdout.replace(str(build), "build/release"), result.returncode


def check_run(block, build):
    listed = commands(block)
    instead = re.match(r'instead="(.*)"$', block.argument)
    if instead:
        if len(listed) != 1:
            return "'instead' is for a block of one command"
        listed = [(instead.group(1), listed[0][1])]
    for command, expected in listed:
        actual, status = run_command(command, build)
        if status != 0:
            return f"'{command}' ended with status {status}:\n{actual}"
        if not pattern_of(expected).match(actual):
            where = first_difference(expected, actual)
            return f"'{command}' does not print line '{where}' there, but:\n{actual}"
    return None


def check_file(block):
    path = ROOT / block.argument
    if not path.is_file():
        return f"there is no file {block.argument}"
    if path.read_text().splitlines() != block.text:
        return f"differs from {block.argument}"
    return None


def check_output_of(block, build):
    actual, status = run_command(block.argument, build)
    if status != 0:
        return f"'{block.argument}' ended with status {status}:\n{actual}"
    if actual.splitlines() != block.text:
        return f"differs from what '{block.argument}' prints:\n{actual}"
    return None


def check_links(path, text):
    fenced = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", fenced):
        if re.match(r"[a-z]+:|#", target):
            continue
        if not (path.parent / target.split("#")[0]).exists():
            yield f"the link to {target} leads nowhere"


def check_document(path, build, only_static):
    text = path.read_text()
    for message in check_links(path, text):
        yield 0, message
    for block in blocks(text):
        if block.kind == "file":
            message = check_file(block)
        elif block.kind == "output-of":
            message = check_output_of(block, build)
        elif only_static:
            message = None
        else:
            message = check_run(block, build)
        yield block.line, message


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--only-static", action="store_true", help="run no command of a `run` block")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    files = options.files or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
    number_wrong = number_checked = 0
    for path in files:
        for line, message in check_document(path.resolve(), options.build.resolve(), options.only_static):
            number_checked += 1
            if message:
                number_wrong += 1
                print(f"{path}:{line}: {message}")
    print(f"{len(files)} documents, {number_checked} blocks and links checked, {number_wrong} wrong")
    return 1 if number_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
