"""How a nanny makes parts of a cluster of itself: by fork, clean of all that is the nanny's."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from . import process
from .logs import redirect

__all__ = ["fork", "let_forks_be_ordinary"]

logger = logging.getLogger("ipcluster.nanny")


def fork(role: Callable[[], None], out: int, keep: Iterable[int]) -> int:
    """Run `role` in a child: a process group of its own, default signals, no descriptors but those kept.

    Parameters
    ----------
    role
        Its return is the end of the child.
    out
        Descriptor for its standard output and error.
    keep
        Descriptors that the child needs.

    Returns
    -------
    int
        The child's pid.
    """
    # A signal between fork and reset would reach this process's handlers through the shared wake-up pipe.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(role, out, {*keep, out})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _become(role: Callable[[], None], out: int, kept: set[int]) -> None:
    """Turn the fork into a part of the cluster; never returns."""
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        process.reset_signals()
        atexit._clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - what the nanny registered is not the child's to do
        process.close_all_but(kept)
        redirect(out)
        os.close(out)
        role()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        # The top of this process: whatever it is goes to the log, which the nanny quotes.
        logger.exception("this process fails")
    finally:
        with suppress(BaseException):
            # Users' hooks count on it, and os._exit runs none.
            atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def let_forks_be_ordinary(signals: Iterable[int]) -> None:
    """Have what user code forks from this process take these signals as a Python process does that nobody has set up.

    This process's handlers are not for its children: `multiprocessing` ends them by SIGTERM, and waits for their end.
    The signals are held back around the fork: the interpreter forgets in the child what came before it was itself, so
    that a child which is ended as soon as it is there would live on.
    """
    held, before = frozenset(signals), threading.local()

    def hold() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def reset() -> None:
        for signum in held:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=reset)
