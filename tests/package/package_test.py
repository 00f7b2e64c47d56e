"""`cmake --install`, and projects outside this one that use what it installed.

usage: package_test.py BUILD LIBTORCH COMPILER LAUNCHER VERSION
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, LIBTORCH, COMPILER, LAUNCHER, VERSION = (None,) * 5  # from the command line


def run(*command, **environment):
    """The finished process; a process that fails shows all that it said."""
    return subprocess.run(
        [str(word) for word in command],
        env=dict(os.environ, OMP_NUM_THREADS="1", **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
    )


def run_well(*command, **environment):
    result = run(*command, **environment)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with status {result.returncode}:\n{result.stdout}")
    return result.stdout


def on_one_line(text):
    return " ".join(text.split())


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # One folder for all runs, so that a compiler cache knows the files again.
        cls.scratch = BUILD / "package_test"
        shutil.rmtree(cls.scratch, ignore_errors=True)
        cls.scratch.mkdir(parents=True)
        cls.installed_in = cls.scratch / "installed"
        run_well("cmake", "--install", BUILD, "--prefix", cls.installed_in)
        # Everything below is done with the package in another place.
        cls.prefix = cls.scratch / "moved"
        cls.installed_in.rename(cls.prefix)

    def folder_of(self, name):
        """Where `name` is built; the sources beside the build that is tested, so
        that a compiler cache knows the library's files by their relative paths."""
        if name == "subproject":
            return BUILD.with_name(BUILD.name + "_subproject")
        return self.scratch / name

    def configure(self, source, name, *flags, **environment):
        return run(
            "cmake",
            "-S", source,
            "-B", self.folder_of(name),
            "-G", "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_CXX_COMPILER={COMPILER}",
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}",
            *flags,
            **environment,
        )  # fmt: skip

    def configure_consumer(self, name, *flags, **environment):
        prefix = f"-DCMAKE_PREFIX_PATH={self.prefix}"
        environment = {"LIBTORCH": "", **environment}
        return self.configure(ROOT / "examples/consumer", name, prefix, *flags, **environment)

    def configure_subproject(self, is_shared):
        found = self.configure(
            ROOT / "tests/package/subproject",
            "subproject",
            f"-DFSDP_SOURCE={ROOT}",
            f"-DLIBTORCH={LIBTORCH}",
            f"-DBUILD_SHARED_LIBS={is_shared}",
            # The library alone needs none of the program's dependencies.
            "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=TRUE",
            "-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=TRUE",
        )
        self.assertEqual(found.returncode, 0, found.stdout)

    def losses(self, *command):
        output = run_well(*command, LD_LIBRARY_PATH=str(LIBTORCH / "lib"))
        return [float(loss) for loss in re.findall(r"step \d+ loss (\S+)$", output, re.M)]

    def check_losses(self, program):
        """Two ranks print the losses of the unsharded run, and they fall."""
        alone = self.losses(program)
        sharded = self.losses(self.prefix / "bin/fsdp", "run", "-n", "2", "--", program)
        self.assertEqual(len(alone), 10)
        self.assertEqual(len(sharded), 10)
        self.assertLess(alone[-1], 0.9 * alone[0])
        for one, two in zip(alone, sharded):
            self.assertLess(abs(one - two), 1e-5 * one + 1e-6)

    def make_libtorch(self, name, version):
        """A folder that looks like LibTorch of that version as far as CMake reads."""
        folder = self.scratch / name
        for path, text in {
            "include/ATen/core/Tensor.h": "",
            "include/torch/headeronly/version.h": "".join(
                f"#define TORCH_VERSION_{part} {number}\n"
                for part, number in zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
            ),
            "include/torch/csrc/api/include/torch/all.h": "",
            "lib/libtorch.so": "",
            "lib/libtorch_cpu.so": "",
            "lib/libc10.so": "",
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    def test_a_project_outside_builds_and_trains_the_same_sharded(self):
        found = self.configure_consumer("consumer", f"-DLIBTORCH={LIBTORCH}")
        self.assertEqual(found.returncode, 0, found.stdout)
        run_well("cmake", "--build", self.scratch / "consumer")
        self.check_losses(self.scratch / "consumer/consumer")

    def test_a_project_that_holds_the_sources_gets_the_library_alone(self):
        build = self.folder_of("subproject")
        shutil.rmtree(build, ignore_errors=True)
        self.configure_subproject("ON")
        targets = run_well("cmake", "--build", build, "--target", "help")
        self.assertIn("fsdp_runtime:", targets)
        self.assertNotIn("first_steps:", targets)
        self.assertNotIn("_test:", targets)
        self.assertNotIn("fsdp_cli:", targets)
        self.assertNotIn("fsdp", (build / "cmake_install.cmake").read_text())
        run_well("cmake", "--build", build)
        self.check_losses(build / "consumer")
        self.assertTrue((build / "fsdp/lib/libfsdp.so").exists())
        # The same objects once more, in a static library.
        self.configure_subproject("OFF")
        run_well("cmake", "--build", build)
        self.assertTrue((build / "fsdp/lib/libfsdp.a").exists())
        self.assertNotIn(b"libfsdp.so", (build / "consumer").read_bytes())
        self.check_losses(build / "consumer")

    def test_every_public_header_is_installed(self):
        for folder in (ROOT / "include", self.prefix / "include"):
            self.assertTrue((folder / "fsdp/fsdp.h").is_file())
        listed = {str(path.relative_to(ROOT)) for path in (ROOT / "include").rglob("*.h")}
        found = {str(path.relative_to(self.prefix)) for path in (self.prefix / "include").rglob("*.h")}
        self.assertEqual(found, listed)

    def test_no_installed_file_names_a_folder_of_the_building_machine(self):
        names = {str(name) for name in (ROOT, BUILD, LIBTORCH, self.installed_in)}
        names |= {os.path.realpath(name) for name in names}
        self.assertIn(str(LIBTORCH).encode(), (BUILD / "bin/fsdp").read_bytes())  # its RUNPATH
        files = [path for path in self.prefix.rglob("*") if path.is_file()]
        self.assertGreater(len(files), 20)
        for path in files:
            data = path.read_bytes()
            if data.startswith(b"\x7fELF"):
                # Texts of LibTorch's checks name its headers; what is looked for at
                # run time must name no folder.
                data = run_well("readelf", "-d", path).encode()
                self.assertIn(b"NEEDED", data)
            for name in names:
                with self.subTest(file=str(path.relative_to(self.prefix)), name=name):
                    self.assertFalse(name.encode() in data)

    def test_another_minor_version_of_libtorch_is_refused(self):
        other = self.make_libtorch("older", "2.11.1")
        refused = self.configure_consumer("refused", f"-DLIBTORCH={other}")
        self.assertNotEqual(refused.returncode, 0)
        minor = re.match(r"\d+\.\d+\.", VERSION).group(0)
        self.assertIn(
            f"it was built against LibTorch {VERSION}, but {other} holds 2.11.1: name a "
            f"LibTorch {minor}x by LIBTORCH, or build libfsdp against this one",
            on_one_line(refused.stdout),
        )

    def test_without_libtorch_it_says_how_to_name_one(self):
        refused = self.configure_consumer("missing")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(
            "set LIBTORCH to a folder that holds include/ and lib/, or name one in "
            "CMAKE_PREFIX_PATH",
            on_one_line(refused.stdout),
        )

    def test_libtorch_is_found_by_every_way_of_naming_it(self):
        folder = self.make_libtorch("named", VERSION)
        environment = self.scratch / "venv"
        wheel = environment / "lib/python3.11/site-packages/torch"
        wheel.parent.mkdir(parents=True)
        wheel.symlink_to(folder)
        (folder / "share/cmake").mkdir(parents=True)
        for number, (flags, variables, expected) in enumerate(
            (
                ((), {"LIBTORCH": str(folder)}, folder),
                ((), {"CMAKE_PREFIX_PATH": str(folder)}, folder),
                ((), {"CMAKE_PREFIX_PATH": f"{folder}/share/cmake"}, folder),
                ((f"-DCMAKE_PREFIX_PATH={self.prefix};{folder}",), {}, folder),
                ((f"-DCMAKE_PREFIX_PATH={self.prefix};{environment}",), {}, wheel),
            )
        ):
            with self.subTest(flags=flags, variables=variables):
                found = self.configure_consumer(f"named{number}", *flags, **variables)
                self.assertEqual(found.returncode, 0, found.stdout)
                cache = (self.scratch / f"named{number}" / "CMakeCache.txt").read_text()
                self.assertIn(f"LIBTORCH:PATH={expected}\n", cache)


if __name__ == "__main__":
    BUILD, LIBTORCH = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    COMPILER, LAUNCHER, VERSION = sys.argv[3:6]
    unittest.main(argv=sys.argv[:1] + sys.argv[6:])
