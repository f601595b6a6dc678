"""What engines print, as lines: split, cut when too long, dropped and counted when too many. No I/O.

::

    bytes -> LineSplitter -> lines -> LineLimit -> the lines to keep, and a notice where some are missing
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LONGEST_LINE_BYTES", "LineLimit", "LineSplitter", "notice_of"]

#: Longest line that is kept whole, in bytes.
LONGEST_LINE_BYTES = 64 * 1024

#: Lines that an engine may write at once.
BURST_LINES = 20_000

#: Lines per second that an engine may write for long.
LINES_PER_SECOND = 2_000

#: Seconds of that rate which must have gathered before a flood is let through again: so there is one notice a second,
#: and not one at each line that gets through.
_RESUME_SECONDS = 1.0


def notice_of(dropped: int, why: str = "") -> bytes:
    """Return the line that stands where lines are missing."""
    return f"[ipcluster] {dropped} line{'s' * (dropped != 1)} dropped{why}".encode()


class LineSplitter:
    """Makes lines of bytes as they come; how they were cut into pieces does not matter.

    Holds no more than the longest line, whatever comes.

    Parameters
    ----------
    longest
        Bytes of a line that are kept; the rest is counted, and the line says so.
    """

    def __init__(self, longest: int = LONGEST_LINE_BYTES) -> None:
        self._longest = longest
        self._begun = bytearray()
        self._more = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the lines that they complete, without their ends."""
        first, *others = data.split(b"\n")
        self._extend(first)
        if not others:
            return []
        lines = [self._take(), *others[:-1]]
        if len(data) > self._longest:
            lines[1:] = [self._cut(line, len(line)) for line in lines[1:]]
        self._extend(others[-1])
        return lines

    def finish(self) -> list[bytes]:
        """Return what has no end yet as a line, if there is something."""
        return [self._take()] if self._begun else []

    def _extend(self, piece: bytes) -> None:
        room = self._longest - len(self._begun)
        self._begun += piece[:room]
        self._more += max(0, len(piece) - room)

    def _take(self) -> bytes:
        line = self._cut(bytes(self._begun), len(self._begun) + self._more)
        self._begun.clear()
        self._more = 0
        return line

    def _cut(self, line: bytes, length: int) -> bytes:
        more = length - self._longest
        return line if more <= 0 else line[: self._longest] + f" [ipcluster] {more} bytes cut".encode()


class LineLimit:
    """Lets so many lines through at once, and so many each second; drops and counts the rest.

    What is dropped and what is let through add up to what came.

    Parameters
    ----------
    now
        Monotonic time, as in all that follows.
    rate
        Lines per second.
    burst
        Lines that may come at once after a pause.
    """

    def __init__(self, now: float, rate: float = LINES_PER_SECOND, burst: int = BURST_LINES) -> None:
        self._rate = rate
        self._burst = burst
        self._resume = min(float(burst), max(1.0, rate * _RESUME_SECONDS))
        self._left = float(burst)
        self._at = now
        self._flooded = False
        self._dropped = 0

    def admit(self, lines: Sequence[bytes], now: float) -> list[bytes]:
        """Return those of the lines that are let through, after a notice if lines before them were dropped."""
        self._left = min(float(self._burst), self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._flooded and self._left < self._resume:
            self._dropped += len(lines)
            return []
        kept = self.flush()
        passing = lines[: int(self._left)]
        self._left -= len(passing)
        self._dropped = len(lines) - len(passing)
        self._flooded = self._dropped > 0
        return [*kept, *passing]

    def flush(self) -> list[bytes]:
        """Return the notice of what was dropped, if it has not been given yet."""
        dropped, self._dropped = self._dropped, 0
        return [notice_of(dropped)] if dropped else []

    @property
    def deadline(self) -> float | None:
        """When to call `admit` again although nothing came: there will be a notice to give. None: never."""
        if not self._dropped:
            return None
        return self._at + max(0.0, self._resume - self._left) / self._rate
