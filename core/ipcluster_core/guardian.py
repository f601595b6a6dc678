"""What this process has to do where it is PID 1, as in a container without an init: reap, and heed SIGTERM.

A nanny leaves its creator, so it becomes a child of PID 1; so do its own children when it is killed. An init reaps
them; a script that happens to be PID 1 does not, and they would stay as zombies for as long as it runs.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

from .process import children, tagged

__all__ = ["adopt", "heed_sigterm"]

#: Seconds for the children of a nanny that was killed to end, which they do when they see its end.
_PARTING_SECONDS = 15.0

#: Seconds between two looks at them.
_LOOK_SECONDS = 0.05


def adopt(tag: str) -> None:
    """Reap what ends of an incarnation's processes, as far as they are this process's children; only as PID 1."""
    if os.getpid() != 1:
        return
    for pid in set(children(1)).intersection(tagged(tag)):
        threading.Thread(target=_reap, args=(pid,), name=f"ipcluster-reaper-{pid}", daemon=True).start()


def _reap(nanny: int) -> None:
    with suppress(ChildProcessError):  # this process is a better init than was thought
        os.waitpid(nanny, 0)
    deadline = time.monotonic() + _PARTING_SECONDS
    while time.monotonic() < deadline and (left := [pid for pid in children(1) if _session(pid) == nanny]):
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_LOOK_SECONDS)  # nothing but SIGCHLD, which is the script's, announces their end


def _session(pid: int) -> int:
    """Return the session of a process, also of a zombie; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def heed_sigterm() -> None:
    """Have SIGTERM end this process as it ends any other, where it is PID 1 and does not handle it.

    References
    ----------
    pid_namespaces(7): the kernel drops a signal for PID 1 that has no handler.
    """
    ignored = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    if os.getpid() == 1 and not ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def _leave(signum: int, frame: object) -> None:
    del frame
    raise SystemExit(128 + signum)
