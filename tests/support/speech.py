"""Code that writes in every way there is, for tests of scripts and DAG files whose log is to have all of it (C33)."""

from __future__ import annotations

import re

__all__ = ["SPEAKERS", "spoken"]

#: Two functions, indented as scripts are that have them: `speak` dies with its last word, `flood` is long.
SPEAKERS = """
    import ctypes, logging, os, signal, subprocess, sys

    def speak():
        for n in range(100):
            print("print", n)
        for n in range(100):
            logging.getLogger("pipeline").info("log %d", n)
        subprocess.run([sys.executable, "-c", "for n in range(10): print('child', n)"], check=True)
        for n in range(5):
            ctypes.CDLL(None).puts(f"C {n}".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def flood():
        for n in range(1_000_000):
            print("flood", n)
"""


def spoken(log: str) -> dict[str, list[int]]:
    """Return what a log has of `speak` on engine 0: the numbers of each source, in their order."""
    found: dict[str, list[int]] = {"print": [], "log": [], "child": [], "C": []}
    for source, number in re.findall(r"\[engine 0\] .*?(print|log|child|C) (\d+)", log):
        found[source].append(int(number))
    return found
