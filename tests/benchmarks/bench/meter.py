"""What a session asks its supervisor: two named pipes, a line each way. See `bench.supervise`."""

from __future__ import annotations

import os
import resource

#: Names of the pipes in the session's folder.
QUESTIONS, ANSWERS = "questions", "answers"


class Meter:
    """The session's side. It waits for each answer, so it is not at work while it is measured."""

    def __init__(self, folder: str) -> None:
        self._questions = os.open(os.path.join(folder, QUESTIONS), os.O_WRONLY | os.O_CLOEXEC)
        self._answers = os.open(os.path.join(folder, ANSWERS), os.O_RDONLY | os.O_CLOEXEC)

    def cpu(self) -> float:
        """Return the CPU seconds of all processes that this session ever had."""
        # The kernel tells others about ended children in ticks of 10 ms, and a process itself in microseconds.
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self._ask("cpu", int((ended.ru_utime + ended.ru_stime) * 1e9))[0] / 1e9

    def others(self) -> list[int]:
        """Return the pids of all processes of this session but this one and what started it."""
        return self._ask("others")

    def closing(self) -> None:
        """Say that from now on processes end, and that the last one's end is wanted."""
        self._ask("closing")

    def _ask(self, word: str, number: int = 0) -> list[int]:
        os.write(self._questions, f"{word} {os.getpid()} {number}\n".encode())
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(self._answers, 65536)
            if not read:
                raise EOFError("the supervisor is gone")
            line += read
        return [int(word) for word in line.split()]
