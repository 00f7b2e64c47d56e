"""The set-up script ./run: what it says, what it installs, what it leaves alone.

Commands that would change the machine are stand-ins first in PATH, which write
down how they were called.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
BUILD = None  # the build folder that the test belongs to, from the command line


def make_tool(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


class Script(unittest.TestCase):
    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-setup-"))
        self.addCleanup(shutil.rmtree, self.scratch)
        self.tree = self.scratch / "tree"
        self.tree.mkdir()
        shutil.copy(SOURCE / "run", self.tree / "run")
        self.tools = self.scratch / "tools"
        self.tools.mkdir()
        self.calls = self.scratch / "calls"
        self.calls.touch()
        self.libtorch = self.make_libtorch("2.13.0")
        for name in ("apt-get", "sudo", "env"):
            make_tool(self.tools, name, f'echo "{name} $*" >> "{self.calls}"\n')
        make_tool(self.tools, "env", 'while [[ $1 == *=* ]]; do shift; done; exec "$@"\n')
        make_tool(self.tools, "dpkg-query", "printf installed\n")
        make_tool(self.tools, "cmake", "echo cmake version 3.30.1\n")
        make_tool(self.tools, "ninja", "echo 1.12\n")
        make_tool(self.tools, "id", "echo 0\n")

    def make_libtorch(self, version):
        folder = self.scratch / ("libtorch-" + version)
        for name in ("torch", "torch_cpu", "c10"):
            path = folder / "lib" / f"lib{name}.so"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        header = folder / "include/ATen/core/Tensor.h"
        header.parent.mkdir(parents=True)
        header.touch()
        header = folder / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        parts = version.split(".")
        header.write_text(
            "".join(
                f"#define TORCH_VERSION_{name} {part}\n"
                for name, part in zip(("MAJOR", "MINOR", "PATCH"), parts)
            )
        )
        return folder

    def run_script(self, *arguments, **environment):
        clean = {"HOME": str(self.scratch), "PATH": f"{self.tools}:/usr/bin:/bin"}
        clean["LIBTORCH"] = str(self.libtorch)
        clean.update(environment)
        return subprocess.run(
            [str(self.tree / "run"), *arguments],
            env=clean,
            cwd=self.scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def expect_error(self, result, text):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1], "run: error: " + text)
        self.assertEqual(result.stdout, "")

    def called(self):
        return self.calls.read_text().splitlines()

    def test_is_valid_bash(self):
        for script in ("run", ".ci/run"):
            result = subprocess.run(["bash", "-n", str(SOURCE / script)], capture_output=True)
            self.assertEqual(result.stderr, b"")
            self.assertTrue(os.access(SOURCE / script, os.X_OK), script)

    def test_help_names_every_command_and_variable(self):
        result = self.run_script("help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.startswith("usage: ./run COMMAND [arguments]\n"))
        for word in ("train", "test", "bench", "check", "build", "setup", "help"):
            self.assertIn(f"\n  {word} ", result.stdout)
        for word in ("DATA", "RANKS", "LIBTORCH", "TORCH_INDEX_URL", "PYTHON", "JOBS"):
            self.assertIn(f"\n  {word}=", result.stdout)
        self.assertEqual(self.run_script().stdout, result.stdout)

    def test_refuses_an_unknown_command(self):
        self.expect_error(
            self.run_script("tarin"), "unknown command 'tarin': ./run help lists the commands"
        )

    def test_refuses_an_unknown_part_of_check(self):
        self.expect_error(
            self.run_script("check", "tsan", "msan"),
            "unknown part 'msan' of check: expected tsan, asan, dev, clang, "
            "format or libtorch214",
        )
        self.assertEqual(self.called(), [])

    def test_refuses_a_folder_without_libtorch_before_it_installs_anything(self):
        make_tool(self.tools, "dpkg-query", "exit 1\n")
        self.expect_error(
            self.run_script("setup", LIBTORCH="nowhere"),
            "LIBTORCH=nowhere holds no LibTorch: expected include/ATen/core/Tensor.h "
            "and lib/libtorch_cpu.so in it",
        )
        self.assertEqual(self.called(), [])

    def test_takes_a_libtorch_named_from_the_callers_folder(self):
        result = self.run_script("setup", LIBTORCH="libtorch-2.13.0")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.called(), [])

    def test_installs_nothing_when_everything_is_there(self):
        result = self.run_script("setup")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.called(), [])
        self.assertFalse((self.tree / ".venv").exists())

    def test_installs_the_missing_packages_only(self):
        make_tool(
            self.tools,
            "dpkg-query",
            "case ${!#} in ccache) exit 1 ;; libgloo-dev) printf config-files ;; "
            "*) printf installed ;; esac\n",
        )
        result = self.run_script("setup")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "run: installing: ccache libgloo-dev\n")
        self.assertEqual(
            self.called(),
            [
                "apt-get -qq update",
                "apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "
                "ccache libgloo-dev",
            ],
        )

    def test_installs_through_sudo_for_a_user_who_is_not_root(self):
        make_tool(self.tools, "dpkg-query", "[ ${!#} != g++ ] && printf installed\n")
        make_tool(self.tools, "id", "echo 1000\n")
        result = self.run_script("setup")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            self.called()[0],
            "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -qq update",
        )

    def test_names_the_packages_when_it_cannot_become_root(self):
        tools = self.scratch / "system"
        tools.mkdir()
        for name in ("bash", "dirname", "sed", "sort", "cat"):
            (tools / name).symlink_to(shutil.which(name))
        (self.tools / "sudo").unlink()
        (tools / "python3").symlink_to(sys.executable)
        make_tool(self.tools, "dpkg-query", "[ ${!#} != g++ ] && printf installed\n")
        make_tool(self.tools, "id", "echo 1000\n")
        self.expect_error(
            self.run_script("setup", PATH=f"{self.tools}:{tools}"),
            "packages are missing and there is no sudo here; as root: apt-get install g++",
        )

    def test_names_the_pythons_that_have_a_wheel(self):
        make_tool(
            self.tools,
            "oldpython",
            '[ "$1" = --version ] && echo Python 3.9.2 || echo 9\n',
        )
        self.expect_error(
            self.run_script("setup", LIBTORCH="", PYTHON="oldpython"),
            "oldpython is Python 3.9.2, but torch 2.13.0 has wheels for Python 3.10 to "
            "3.14: name such a Python by PYTHON=, or a LibTorch of yours by LIBTORCH=",
        )

    def test_takes_the_wheel_from_the_named_index_once(self):
        # A Python whose venv is a folder with a pip that writes its call down.
        make_tool(
            self.tools,
            "fakepython",
            f"""
case "$*" in
  --version) echo Python 3.12.1 ;;
  "-m venv --clear "*)
    mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; touch "$4/bin/pip" ;;
  "-m pip --version") [[ $0 == */.venv/* ]] ;;
  "-m pip install "*)
    echo "pip $*" >> "{self.calls}"
    site=$(dirname "$0")/../lib/python3.12/site-packages
    mkdir -p "$site/torch/lib" "$site/torch-2.13.0.dist-info"
    touch "$site/torch/lib/libtorch_cpu.so" "$site/torch-2.13.0.dist-info/INSTALLER" ;;
  *sys.version_info*) echo 12 ;;
esac
""",
        )
        environment = {"LIBTORCH": "", "PYTHON": "fakepython", "TORCH_INDEX_URL": "file:///x"}
        first = self.run_script("setup", **environment)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(
            self.called(),
            [
                "pip -m pip install --quiet --disable-pip-version-check --no-input "
                "--index-url file:///x torch==2.13.0"
            ],
        )
        second = self.run_script("setup", **environment)
        self.assertEqual((second.returncode, second.stderr), (0, ""))
        self.assertEqual(len(self.called()), 1)
        # A wheel that was not unpacked to its end is installed again.
        next(self.tree.glob(".venv/lib/*/*/*.dist-info/INSTALLER")).unlink()
        self.assertEqual(self.run_script("setup", **environment).returncode, 0)
        self.assertEqual(len(self.called()), 2)

    def make_python(self, name, prefix):
        """A Python that makes a .venv, writes down pip's calls, and has a module only
        after pip was asked for it."""
        make_tool(
            self.tools,
            name,
            f"""
modules=$(dirname "$0")/modules
case "$*" in
  "-m venv --clear "*)
    mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; cp "$0" "$4/bin/python3"; touch "$4/bin/pip" ;;
  "-m pip --version") [[ $0 == */.venv/* ]] ;;
  "-m pip install "*)
    echo "{prefix}${{!#}}" >> "{self.calls}"
    echo "${{!#}}" >> "$modules" ;;
  *find_spec*) grep -q torch== "$modules" && grep -q safetensors== "$modules" ;;
  *sys.version_info*) echo 12 ;;
  *) echo "python $*" >> "{self.calls}" ;;
esac
""",
        )

    def test_a_libtorch_without_python_gets_pytorch_to_compare_with(self):
        self.make_python("fakepython", "pip ")
        make_tool(self.tools, "ctest", f'echo "ctest $*" >> "{self.calls}"\n')
        make_tool(self.tools, "cmake", f'echo "cmake $*" >> "{self.calls}"; echo cmake version 3.30.1\n')
        for _ in range(2):  # the second time everything is there
            result = self.run_script("bench", "--quick", PYTHON="fakepython")
            self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.called()
        self.assertEqual(
            [call for call in calls if call.startswith("pip")],
            ["pip torch==2.13.0", "pip safetensors==0.8.0"],
        )
        python = f"{self.tree}/.venv/bin/python3"
        self.assertIn(f"-DFSDP_PYTHON={python}", " ".join(calls).split())
        self.assertEqual(
            calls[-1],
            f"python {self.tree}/benchmarks/bench.py --build {self.tree}/build/release "
            f"--python {python} --quick",
        )
        result = self.run_script("test", PYTHON="fakepython")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"-DFSDP_PYTHON={python}", self.called()[-3].split())

    def test_a_python_beside_libtorch_is_compared_with_as_it_is(self):
        folder = self.scratch / "env/lib/python3.12/site-packages"
        folder.mkdir(parents=True)
        self.libtorch.rename(folder / "torch")
        beside = self.scratch / "env/bin"
        beside.mkdir()
        make_tool(beside, "python3", f'[ "$1" = -c ] || echo "beside $*" >> "{self.calls}"\n')
        result = self.run_script("bench", LIBTORCH=str(folder / "torch"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            self.called(),
            [
                f"beside {self.tree}/benchmarks/bench.py --build {self.tree}/build/release "
                f"--python {beside}/python3"
            ],
        )
        self.assertFalse((self.tree / ".venv").exists())

    def test_configuring_refuses_other_versions_of_libtorch(self):
        cmake = shutil.which("cmake") or "cmake"
        for version, is_accepted in (
            ("2.10.2", False),
            ("2.11.0", True),
            ("2.14.1", True),
            ("2.15.0", False),
        ):
            folder = self.libtorch if version == "2.13.0" else self.make_libtorch(version)
            script = self.scratch / "find.cmake"
            script.write_text(
                f'set(PROJECT_SOURCE_DIR "{self.scratch}")\n'
                f'list(APPEND CMAKE_MODULE_PATH "{SOURCE}/cmake")\n'
                "set(CMAKE_FIND_LIBRARY_PREFIXES lib)\nset(CMAKE_FIND_LIBRARY_SUFFIXES .so)\n"
                "function(add_library)\nendfunction()\n"
                "function(set_target_properties)\nendfunction()\n"
                "function(target_include_directories)\nendfunction()\n"
                "function(target_link_libraries)\nendfunction()\n"
                "find_package(LibTorch REQUIRED)\n"
                'message(STATUS "taken: ${LibTorch_VERSION}")\n'
            )
            result = subprocess.run(
                [cmake, f"-DLIBTORCH={folder}", "-P", str(script)],
                capture_output=True,
                text=True,
                timeout=60,
            )
            with self.subTest(version=version):
                if is_accepted:
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertIn("taken: " + version, result.stdout)
                else:
                    self.assertEqual(result.returncode, 1)
                    self.assertIn(
                        f"LibTorch {version} in {folder} is not supported: "
                        "2.11 to 2.14 are accepted, 2.13 is tested",
                        " ".join(result.stderr.split()),
                    )

    def test_building_an_unchanged_tree_again_does_nothing(self):
        result = subprocess.run(
            ["cmake", "--build", str(BUILD), "--", "-n"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no work to do", result.stdout)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1))
    unittest.main()
