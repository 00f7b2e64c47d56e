"""The sides of a comparison: long-lived worker processes that wait between the
blocks in which they run."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"

START_TIMEOUT_S = 180
BLOCK_TIMEOUT_S = 600
STOP_TIMEOUT_S = 30


class SideError(Exception):
    """A worker could not be started, ended early or did not answer."""


class Side:
    """The ranks of one program. `argv` starts all of them; each connects to a
    socket of ours. Use it in a `with` statement: it leaves no process behind."""

    def __init__(self, name, argv, ranks, folder):
        self.name = name
        self.argv = [str(word) for word in argv]
        self.ranks = ranks
        self.hellos = []
        self.started_at = None
        self._lines = []
        self._process = None
        self._log = pathlib.Path(folder) / f"{name}.log"
        self._socket = pathlib.Path(folder) / f"{name}.socket"

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self):
        self._socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self._socket))
            listener.listen(self.ranks)
            self._launch()
            deadline = time.monotonic() + START_TIMEOUT_S
            connected = [self._accept(listener, deadline) for _ in range(self.ranks)]
        hellos = [(self._receive(line, deadline), line) for line in connected]
        hellos.sort(key=lambda pair: pair[0]["rank"])
        self.hellos = [hello for hello, _ in hellos]
        self._lines = [line for _, line in hellos]
        if [hello["rank"] for hello in self.hellos] != list(range(self.ranks)):
            raise SideError(f"{self.name}: ranks {self.hellos} joined, not 0 to {self.ranks - 1}")

    def _launch(self):
        environment = dict(
            os.environ,
            FSDP_BENCH_SOCKET=str(self._socket),
            OMP_NUM_THREADS="1",
            MKL_NUM_THREADS="1",
        )
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        self.started_at = time.monotonic()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _fail(self, what):
        tail = self._log.read_text(errors="replace").splitlines()[-20:]
        raise SideError("\n".join([f"{self.name}: {what}; its last output:", *tail]))

    def _wait_for(self, call, deadline, what):
        """`call` on a socket with a timeout, while the program lives."""
        while True:
            try:
                return call()
            except TimeoutError:
                if self._process.poll() is not None:
                    self._fail(f"ended with status {self._process.returncode} instead of {what}")
                if time.monotonic() > deadline:
                    self._fail(f"took too long: no sign of {what}")

    def _accept(self, listener, deadline):
        listener.settimeout(0.5)
        connection, _ = self._wait_for(listener.accept, deadline, "a rank that connects")
        connection.settimeout(0.5)
        return Line(connection)

    def _receive(self, line, deadline):
        text = self._wait_for(line.read, deadline, "an answer")
        if text is None:
            self._fail("a rank has hung up")
        return json.loads(text)

    def run(self, num_steps):
        """Runs a block on all ranks at once; the answer of each."""
        for line in self._lines:
            line.write(f"run {num_steps}\n")
        deadline = time.monotonic() + BLOCK_TIMEOUT_S
        answers = [self._receive(line, deadline) for line in self._lines]
        for answer in answers:
            if len(answer["losses"]) != num_steps or len(answer["ms"]) != num_steps:
                self._fail(f"answered {answer} to a block of {num_steps} steps")
        return answers

    def stop(self):
        for line in self._lines:
            line.close("quit\n")
        self._lines = []
        if self._process is None:
            return
        for ask in (None, signal.SIGTERM, signal.SIGKILL):
            try:
                if ask is not None:
                    os.killpg(self._process.pid, ask)
                self._process.wait(STOP_TIMEOUT_S if self.hellos or ask else 0)
                break
            except subprocess.TimeoutExpired:
                continue
        for hello in self.hellos:  # torchrun gives each rank a session of its own
            self._kill_rank(hello["pid"])
        self._process = None

    def _kill_rank(self, pid):
        mark = f"FSDP_BENCH_SOCKET={self._socket}".encode()
        try:
            if mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


class Line:
    """A connection that is read line by line, with timeouts that lose nothing."""

    def __init__(self, connection):
        self._connection = connection
        self._received = b""

    def read(self):
        """The next line; None at the end. Raises TimeoutError."""
        while b"\n" not in self._received:
            part = self._connection.recv(65536)
            if not part:
                return None
            self._received += part
        line, self._received = self._received.split(b"\n", 1)
        return line.decode()

    def write(self, text):
        self._connection.sendall(text.encode())

    def close(self, last_words):
        try:
            self.write(last_words)
        except OSError:
            pass
        self._connection.close()


class Programs:
    """Where the programs are, and how each side is started on given weights."""

    def __init__(self, build, python, deepspeed_python=None):
        self.build = pathlib.Path(build)
        self.python = str(python)
        self.deepspeed_python = deepspeed_python

    def export(self, path, size, ranks, vocab=0, batch=0):
        script = [self.python, PEERS / "export.py", path]
        options = ["--size", size, "--ranks", ranks, "--vocab", vocab, "--batch", batch]
        result = subprocess.run(
            [str(word) for word in script + options], capture_output=True, text=True
        )
        if result.returncode != 0:
            raise SideError(f"export.py failed:\n{result.stderr}")

    def argv(self, side, ranks, size, dtype, weights, vocab=0, lr=3e-4):
        """How to start `side`: ours, copies, fsdp2, ddp or zero3."""
        data = ["--weights", weights, "--vocab", vocab, "--lr", lr]
        if side in ("ours", "copies"):
            mode = "sharded" if side == "ours" else "copy"
            launcher = [self.build / "bin/fsdp", "run", "-n", ranks, "--"]
            worker = [self.build / "bin/fsdp_bench_worker", "--mode", mode]
            return launcher + worker + ["--preset", size, "--dtype", dtype] + data
        python = self.deepspeed_python if side == "zero3" else self.python
        launcher = [python, "-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", ranks]
        if side == "zero3":
            return launcher + [PEERS / "zero3.py", "--size", size] + data
        script = [PEERS / "pytorch.py", "--mode", side, "--size", size, "--dtype", dtype]
        return launcher + script + data
