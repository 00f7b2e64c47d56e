#!/usr/bin/env python3
"""Checks the rules of the source tree that a compiler does not: sizes, layers,
registration of tests, what library code may not do. CONTRIBUTING.md lists them.

usage: check_tree.py [ROOT]    prints one line for each offence
"""

import pathlib
import re
import subprocess
import sys

# Written by programs, not by people.
DATA_FOLDERS = ("tests/data/", "benchmarks/results/")
MAX_FILE_LINES = 600
MAX_HEADER_LINES = 300
MAX_FUNCTION_LINES = 80

TEXT_SUFFIXES = {".cpp", ".h", ".py", ".md", ".txt", ".cmake", ".json", ".sh", ".in", ".supp", ".html", ".css", ".js"}
TEXT_NAMES = {"run", "mutate", "LICENSE", ".gitignore", ".clang-format"}

# A folder below src may include its own headers and those of the folders named
# here. A file belongs to the longest of these paths that it lies in.
LAYERS = {
    "core": set(),
    "checkpoint": {"core"},
    "plan": {"core"},
    "report": {"core", "plan"},
    "env": {"core"},
    "comm": {"core"},
    "comm/c10d": {"core", "env", "comm"},
    "launch": {"core", "env"},
    "runtime": {"core", "comm", "comm/c10d"},
    "optim": {"core", "comm", "comm/c10d", "runtime"},
    "train": {"core", "plan", "comm", "comm/c10d", "runtime", "optim"},
    "dryrun": {"core", "comm", "comm/c10d", "runtime", "optim", "train"},
    "cli": {"core", "checkpoint", "plan", "report", "env", "launch", "comm", "comm/c10d", "runtime", "optim", "train", "dryrun"},
}
WITHOUT_TORCH = ("src/core/", "src/env/", "src/comm/", "src/launch/", "src/checkpoint/", "src/plan/", "src/report/")
WITH_TORCH = ("src/comm/c10d/",)

# The library never prints and never ends the process. src/cli is a program.
FORBIDDEN_CALLS = re.compile(
    r"\bstd::(cout|cerr|clog)\b"
    r"|(?<![\w:.>])(?:std::|::)?(f?printf|puts|fputs|perror|abort|_?exit|quick_exit|_Exit|terminate)\s*\("
)
# (file, call): why it is right there.
ALLOWED_CALLS = {
    ("src/launch/rank_process.cpp", "_exit"): "in the child, between fork and exec",
    ("src/launch/run_job.cpp", "_exit"): "in the child, between fork and exec",
    ("src/launch/run_job.cpp", "fprintf"): "the launcher tells which rank failed",
}

UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(wo" r"rk|tmp/ve" r"nv|home/\w+|root)/")


def tracked_files(root):
    """Files of the tree: what git tracks or would, else everything outside build."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0 and result.stdout:
        names = result.stdout.splitlines()
    else:
        names = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith(("build/", ".venv/", ".git/"))]
    return sorted(n for n in names if (root / n).is_file())


def is_text(name):
    path = pathlib.PurePath(name)
    return path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES


def blank_comments_and_strings(text):
    """The C++ text with comments, strings and characters blanked, lines kept."""
    pattern = re.compile(
        r'R"(?P<d>[^()\\ ]{0,16})\(.*?\)(?P=d)"'
        r'|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
        re.DOTALL,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def name_of(head):
    words = " ".join(head.split())
    return re.sub(r"^((public|private|protected) ?: ?)+", "", words)[:60]


def functions(text):
    """(first line, number of lines, head) of each function, nested ones not."""
    code = blank_comments_and_strings(text)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.M)
    found, stack, start = [], [], 0
    for match in re.finditer(r"[{};]", code):
        position = match.start()
        if match.group(0) == "{" and not code[position - 1].isspace():
            stack.append(("value", start, ""))  # a_{1}, as the formatter leaves it
            continue
        if match.group(0) == "}" and stack and stack[-1][0] == "value":
            start = stack.pop()[1]
            continue
        if match.group(0) == "{":
            head = code[start:position].strip()
            outer = all(kind == "scope" for kind, _, _ in stack)
            if not outer:
                kind = "block"
            elif re.match(r"(inline\s+)?namespace\b|extern\b|export\b", head) or re.search(
                r"\b(class|struct|union|enum)\b[^()]*$", head
            ):
                kind = "scope"
            elif ")" in head and not re.search(r"=\s*$", head):
                kind = "function"
            else:
                kind = "block"
            stack.append((kind, start, head))
        elif match.group(0) == "}" and stack:
            kind, begin, head = stack.pop()
            if kind == "function":
                lead = re.match(r"\s*((public|private|protected)\s*:\s*)*", code[begin:])
                first = code.count("\n", 0, begin + lead.end()) + 1
                last = code.count("\n", 0, position) + 1
                found.append((first, last - first + 1, name_of(head)))
        start = position + 1
    return found


def check_sizes(name, text):
    if name.startswith(DATA_FOLDERS):
        return
    lines = text.count("\n")
    limit = MAX_HEADER_LINES if name.endswith(".h") else MAX_FILE_LINES
    if lines > limit:
        yield f"{name}: {lines} lines, at most {limit}"
    if name.endswith((".cpp", ".h")):
        for first, length, head in functions(text):
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{first}: {length} lines in '{head}', at most {MAX_FUNCTION_LINES}"


def check_text(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished work: {line.strip()}"
        if MACHINE_PATHS.search(line):
            yield f"{name}:{number}: path of one machine: {line.strip()}"
        if not line.isascii():
            yield f"{name}:{number}: not ASCII: {ascii(line.strip())}"
        if line != line.rstrip():
            yield f"{name}:{number}: space at the end of the line"


def layer_of(path):
    """The layer of a path below src; None for what is in none, such as fsdp/a.h."""
    layers = [layer for layer in LAYERS if path.startswith(layer + "/")]
    return max(layers, key=len, default=None)


def check_includes(name, text):
    if not name.startswith(("src/", "include/")) or not name.endswith((".cpp", ".h")):
        return
    torch_free = name.startswith(WITHOUT_TORCH) and not name.startswith(WITH_TORCH)
    layer = layer_of(name.removeprefix("src/")) if name.startswith("src/") else None
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if not match:
            continue
        header = match.group(1)
        if header == "torch/torch.h":
            yield f"{name}:{number}: includes torch/torch.h, which costs 14 s a file"
        if torch_free and header.startswith(("torch/", "ATen/", "c10/")):
            yield f"{name}:{number}: includes {header} in a layer without LibTorch"
        other = layer_of(header)
        if layer and other and other != layer and other not in LAYERS[layer]:
            yield f"{name}:{number}: src/{layer} includes {header}, which is not below it"


def check_calls(name, text):
    if not name.startswith(("src/", "include/")) or name.startswith("src/cli/"):
        return
    if not name.endswith((".cpp", ".h")):
        return
    code = blank_comments_and_strings(text)
    for number, line in enumerate(code.splitlines(), 1):
        for match in FORBIDDEN_CALLS.finditer(line):
            call = match.group(1) or match.group(2)
            if (name, call) not in ALLOWED_CALLS:
                yield f"{name}:{number}: {call} in the library, which never prints or ends the process"


def check_registered(names, texts):
    """Every source and test is in the CMakeLists.txt of its folder or above."""
    for name in names:
        path = pathlib.PurePath(name)
        is_test = path.name.endswith(("_test.cpp", "_test.py"))
        is_source = name.startswith("src/") and path.suffix == ".cpp"
        if not (is_test or is_source):
            continue
        lists = [str(folder / "CMakeLists.txt") for folder in path.parents]
        words = re.compile(r"(?<![\w.-])" + re.escape(path.name) + r"(?![\w.-])")
        if not any(words.search(texts.get(found, "")) for found in lists):
            yield f"{name}: in no CMakeLists.txt"


def check_tree(root):
    names = tracked_files(root)
    texts, offences = {}, []
    for name in names:
        if not is_text(name) or name.startswith(DATA_FOLDERS):
            continue
        try:
            texts[name] = (root / name).read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            offences.append(f"{name}: not text")
    for name, text in texts.items():
        for check in (check_sizes, check_text, check_includes, check_calls):
            offences.extend(check(name, text))
    offences.extend(check_registered(names, texts))
    return offences, len(texts)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    offences, number = check_tree(root.resolve())
    for offence in offences:
        print(offence)
    print(f"{number} files checked, {len(offences)} offences")
    return 1 if offences or number == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
