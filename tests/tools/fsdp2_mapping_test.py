"""docs/fsdp2_mapping.md against PyTorch's own sources: each public name of FSDP2
has a row, and each row under those headings is such a name.

usage: fsdp2_mapping_test.py LIBTORCH    a wheel's folder; its Python is only read
"""

import ast
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = None  # torch/distributed/fsdp/_fully_shard, from the command line


def parsed():
    trees = {}
    for name in ("__init__", "_fully_shard", "_fsdp_api"):
        trees[name] = ast.parse((SOURCES / f"{name}.py").read_text())
    return trees


def public_names():
    """`name`, `function(argument)` and `Class.member` of all that __all__ names."""
    trees = parsed()
    exported = next(
        ast.literal_eval(node.value)
        for node in trees["__init__"].body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )
    names = set(exported)
    for node in trees["_fully_shard"].body + trees["_fsdp_api"].body:
        if getattr(node, "name", None) not in exported:
            continue
        if node.name == "fully_shard":
            arguments = node.args.args + node.args.kwonlyargs
            names |= {f"fully_shard({argument.arg})" for argument in arguments}
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            name = getattr(member, "name", None)
            if isinstance(member, ast.AnnAssign):
                name = member.target.id
            if name and not name.startswith("_"):
                names.add(f"{node.name}.{name}")
    return names


def listed_names():
    """The first cells of the tables, without those of what is beside FSDP2."""
    text = (ROOT / "docs/fsdp2_mapping.md").read_text().split("## Beside FSDP2")[0]
    return re.findall(r"^\| `(.*?)` \|", text, re.M)


def public_headers():
    return "\n".join(path.read_text() for path in (ROOT / "include/fsdp").glob("*.h"))


class Mapping(unittest.TestCase):
    def test_every_public_name_has_one_row(self):
        names = public_names()
        self.assertGreater(len(names), 40)
        self.assertIn("FSDPModule.unshard", names)
        self.assertEqual(sorted(listed_names()), sorted(names))

    def test_every_function_of_ours_that_it_names_is_in_the_headers(self):
        text = (ROOT / "docs/fsdp2_mapping.md").read_text()
        cells = "\n".join(re.findall(r"^\| .*? \| (.*) \|$", text, re.M))
        ours = set(re.findall(r"`(?:fsdp::)?(\w+)\((?:module|holder)", cells))
        ours |= set(re.findall(r"`(\w+)::\w+`", cells))
        self.assertGreater(len(ours), 8)
        headers = public_headers()
        for name in sorted(ours - {"torch"}):
            with self.subTest(name=name):
                self.assertRegex(headers, rf"\b{name}\b")


if __name__ == "__main__":
    SOURCES = pathlib.Path(sys.argv.pop(1)) / "distributed/fsdp/_fully_shard"
    unittest.main()
