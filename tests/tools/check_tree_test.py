"""Positive and negative controls of tools/check_tree.py."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import check_tree  # noqa: E402


class CheckTree(unittest.TestCase):
    def offences(self, **files):
        """Offences of a tree of these files; keys are paths with / as __."""
        with tempfile.TemporaryDirectory(prefix="fsdp-tree-") as folder:
            root = pathlib.Path(folder)
            for key, text in files.items():
                name = key.replace("__", "/").replace("_DOT_", ".")
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return check_tree.check_tree(root)[0]

    def source(self, text):
        return self.offences(
            src__runtime__a_DOT_cpp=text, src__runtime__CMakeLists_DOT_txt="a.cpp\n"
        )

    def expect(self, found, *texts):
        self.assertEqual(len(found), len(texts), found)
        for offence, text in zip(found, texts):
            self.assertIn(text, offence)

    def test_passes_a_good_tree(self):
        self.expect(self.source("namespace fsdp {\nint f() {\n  return 1;\n}\n} // namespace fsdp\n"))

    def test_limits_files_headers_and_functions(self):
        self.expect(self.source("\n" * 600))
        self.expect(self.source("\n" * 601), "a.cpp: 601 lines, at most 600")
        self.expect(self.offences(include__a_DOT_h="\n" * 301), "a.h: 301 lines, at most 300")
        body = "  g();\n"
        for head in (
            "void f() {\n",
            "template <typename T>\nauto C<T>::f(int a) const -> int {\n",
            "C::C(int a)\n    : a_{a}, b_(a) {\n",
            "TEST(A, B) {\n",
        ):
            extra = head.count("\n") + 1
            fitting = "namespace a {\n" + head + body * (80 - extra) + "}\n}\n"
            self.expect(self.source(fitting))
            self.expect(self.source(fitting.replace(body, body * 2, 1)), ": 81 lines in '")
        nested = "class C {\n public:\n  int f() {\n" + "    if (a) {\n    }\n" * 45 + "  }\n};\n"
        self.expect(self.source(nested), "a.cpp:3: 92 lines in 'int f()'")
        table = "const int kTable[] = {\n" + "    1,\n" * 100 + "};\n"
        self.expect(self.source(table))

    def test_wants_every_test_and_source_in_a_list(self):
        self.expect(self.offences(tests__unit__a_test_DOT_cpp="\n"), "a_test.cpp: in no CMakeLists.txt")
        self.expect(self.offences(tests__b_test_DOT_py="\n"), "b_test.py: in no CMakeLists.txt")
        self.expect(self.offences(src__core__b_DOT_cpp="\n"), "b.cpp: in no CMakeLists.txt")
        self.expect(
            self.offences(
                tests__unit__a_test_DOT_cpp="\n",
                tests__unit__CMakeLists_DOT_txt="add_fsdp_test(x SOURCES a_test.cpp)\n",
            )
        )
        self.expect(
            self.offences(
                tests__a_test_DOT_cpp="\n", tests__CMakeLists_DOT_txt="add(x SOURCES data_test.cpp)\n"
            ),
            "a_test.cpp: in no",
        )

    def test_refuses_the_header_of_everything(self):
        self.expect(self.source("#include <torch/torch.h>\n"), "includes torch/torch.h")
        self.expect(self.offences(include__a_DOT_h="#include <torch/torch.h>\n"), "a.h:1: includes torch")
        self.expect(self.offences(tests__a_DOT_cpp="#include <torch/torch.h>\n"))

    def test_refuses_includes_against_the_layers(self):
        for folder, header, refused in (
            ("core", "ATen/core/Tensor.h", True),
            ("comm", "c10/util/Exception.h", True),
            ("launch", "torch/nn/module.h", True),
            ("env", "torch/nn/module.h", True),
            ("comm", "core/a.h", False),
            ("core", "comm/a.h", True),
            ("comm", "runtime/a.h", True),
            ("runtime", "optim/a.h", True),
            ("optim", "runtime/a.h", False),
            ("train", "cli/a.h", True),
            ("cli", "train/a.h", False),
            ("comm", "comm/c10d/a.h", True),
            ("comm__host", "comm/c10d/a.h", True),
            ("comm__host", "comm/a.h", False),
            ("comm__c10d", "comm/host/a.h", False),
            ("comm", "env/a.h", True),
            ("comm__c10d", "env/a.h", False),
            ("comm__c10d", "launch/a.h", True),
            ("runtime", "launch/a.h", True),
            ("runtime", "comm/c10d/a.h", False),
            ("launch", "env/a.h", False),
            ("env", "launch/a.h", True),
        ):
            with self.subTest(folder=folder, header=header):
                found = self.offences(**{f"src__{folder}__a_DOT_h": f'#include "{header}"\n'})
                self.assertEqual(len(found), int(refused), found)
        self.expect(self.offences(src__comm__c10d__a_DOT_h="#include <ATen/core/Tensor.h>\n"))

    def test_refuses_calls_that_print_or_end_the_process(self):
        for call in (
            "std::cout << 1;",
            "std::cerr << 1;",
            'printf("x");',
            "std::fprintf(stderr, a);",
            "std::abort();",
            "abort();",
            "exit(1);",
            "::_exit(1);",
            "std::terminate();",
        ):
            with self.subTest(call=call):
                self.expect(self.source(f"void f() {{\n  {call}\n}}\n"), "a.cpp:2: ")
        for fine in ("// call abort() here", 'throw Error("abort()");', "job.abort(1);", "snprintf(a, 1, b);"):
            with self.subTest(fine=fine):
                self.expect(self.source(f"void f() {{\n  {fine}\n}}\n"))
        self.expect(self.offences(src__cli__a_DOT_h="void f() {\n  exit(1);\n}\n"))

    def test_refuses_unfinished_work_machine_paths_and_other_letters(self):
        self.expect(self.source("// TO" "DO later\n"), "unfinished work")
        self.expect(self.source("// see /wo" "rk/shared\n"), "path of one machine")
        self.expect(self.source("// caf\u00e9\n"), "not ASCII")
        self.expect(self.source("int a; \n"), "space at the end")
        self.expect(self.source("// src/work/a and a to-do list\n"))


if __name__ == "__main__":
    unittest.main()
