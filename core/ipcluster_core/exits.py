"""How a process ended that is another's child, from whichever of the kernel's places still has it.

::

    it ends -> zombie: /proc/PID/stat -> its parent has reaped it: the pidfd (Linux 6.15 or newer)

References
----------
proc_pid_stat(5), field 52; ``PIDFD_GET_INFO`` in linux/pidfd.h.
"""

from __future__ import annotations

import fcntl
import struct

__all__ = ["status_of"]

#: The request, and the first shape of its answer: what is asked for and given, ..., how it ended.
_GET_INFO = 0xC040FF0B
_INFO = struct.Struct("<Q52xi")

#: Bit of the first field: the process has been reaped, and the last field tells its wait status.
_EXIT = 1 << 3

#: Place of the wait status among the fields behind the name of the program.
_STATUS_FIELD = 49


def status_of(pidfd: int, pid: int) -> int | None:
    """Return the wait status of a process that has ended.

    Parameters
    ----------
    pidfd
        Opened while it lived.
    pid
        Its number.

    Returns
    -------
    int or None
        As `os.waitpid` tells it; None where its parent has reaped it and the kernel is too old to know still.
    """
    status = _of_reaped(pidfd)
    if status is None:
        status = _of_zombie(pid)
    # It may have been reaped between the two looks.
    return _of_reaped(pidfd) if status is None else status


def _of_reaped(pidfd: int) -> int | None:
    answer = bytearray(_INFO.size)
    _INFO.pack_into(answer, 0, _EXIT, 0)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, answer)
    except OSError:  # an older kernel
        return None
    given, status = _INFO.unpack(answer)
    return int(status) if given & _EXIT else None


def _of_zombie(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_STATUS_FIELD]) if fields[0] == "Z" else None
