"""The shared library shows the names of the public headers and no other of ours.

Templates of the standard library and of LibTorch are left aside: they are weak
and hidden wherever a hidden type is in their name.
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = None  # from the command line
TRAINER_ONLY = {"fsdp::DataError"}  # wholly in the header, thrown by the trainer
LINKER_SYMBOLS = {"__bss_start", "_edata", "_end", "_init", "_fini"}


def public_names():
    """The classes and functions that FSDP_API marks, as `fsdp::...`."""
    names = set()
    for path in sorted((ROOT / "include" / "fsdp").glob("*.h")):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        namespace = re.search(r"^namespace (fsdp[\w:]*) \{", text, re.M)
        for match in re.finditer(r"^(class )?FSDP_API (.*?)[(:{;]", text.replace("::", "@"), re.M | re.S):
            words = match.group(2).replace("@", "::").split()
            names.add(namespace.group(1) + "::" + (words[0] if match.group(1) else words[-1]))
    return names


def exported(library):
    """(kind, demangled name) of each dynamic symbol that `library` defines."""
    output = subprocess.run(
        ["nm", "-D", "--defined-only", "-C", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for line in output.splitlines():
        _, kind, name = line.split(" ", 2)
        yield kind, name


def name_of(symbol):
    """What a demangled symbol is about: no arguments, no `vtable for`."""
    symbol = re.sub(r"^(typeinfo|typeinfo name|vtable|VTT|guard variable) for ", "", symbol)
    return re.sub(r"(\[abi:\w+\])?\(.*", "", symbol)


def is_below(name, public):
    return any(name == known or name.startswith(known + "::") for known in public)


class ExportedSymbols(unittest.TestCase):
    def test_only_public_names_are_exported(self):
        public = public_names()
        number = 0
        for kind, symbol in exported(LIBRARY):
            name = name_of(symbol)
            if name in LINKER_SYMBOLS or (kind in "WVu" and not name.startswith("fsdp::")):
                continue
            number += 1
            with self.subTest(symbol=symbol):
                self.assertTrue(is_below(name, public), "not in the public headers")
        self.assertGreater(number, 60)

    def test_every_public_name_is_exported(self):
        public = public_names()
        self.assertGreaterEqual(
            public,
            {
                "fsdp::fully_shard",
                "fsdp::full_parameters",
                "fsdp::set_unit_observer",
                "fsdp::UsageError",
                "fsdp::AdamW",
                "fsdp::detail::HookedBase",
            },
        )
        shown = {name_of(symbol) for _, symbol in exported(LIBRARY)}
        for name in sorted(public - TRAINER_ONLY):
            with self.subTest(name=name):
                self.assertTrue(any(is_below(symbol, {name}) for symbol in shown), "hidden")


if __name__ == "__main__":
    LIBRARY = pathlib.Path(sys.argv.pop(1))
    unittest.main()
