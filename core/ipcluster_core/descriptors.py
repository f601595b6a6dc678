"""Open descriptors: how many a cluster needs on one host, and what is done about a low limit.

The soft limit is raised to the hard one in the parts of a cluster, and is as it was in its engines: it is there for
programs that go through all descriptors.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

from .errors import LaunchError

__all__ = ["keep_some", "lower_limit", "raise_limit", "require"]

#: Descriptors that a nanny has open beside those for its engines, with some to spare for those that come and go.
_OTHERS = 24

#: Those to spare.
_SPARE = 12

#: Descriptors for each engine in a nanny, the part that has most: its output and its log, and its journal if the engine
#: is executed anew.
_PER_ENGINE = {"fork": 2, "spawn": 3}


def require(title: str, engines: int, start_method: str, *, most: int | None = None) -> None:
    """Make sure that a cluster can have as many descriptors open as it needs.

    Parameters
    ----------
    title
        How messages name the cluster.
    engines, start_method
        How many, and how they are made.
    most
        The hard limit; default: this process's, which the cluster inherits.

    Raises
    ------
    LaunchError
        It cannot; the message has the number needed.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if most is None else most
    each = _PER_ENGINE[start_method]
    number = _OTHERS + each * engines
    if hard != resource.RLIM_INFINITY and number > hard:
        raise LaunchError(
            f"{title} needs {number} open descriptors for {engines} engines, and its creator may have {hard} (the hard "
            f"limit, ulimit -n): raise that, or ask for at most {max(0, hard - _OTHERS) // each} engines"
        )


def keep_some() -> None:
    """Fail as if there were no descriptor left while there are some, which are needed to end in good order.

    Raises
    ------
    OSError
        EMFILE: as when there is none at all.
    """
    lowest = os.dup(0)  # the lowest that is free tells how many are in use
    os.close(lowest)
    if lowest + _SPARE > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def raise_limit() -> int:
    """Let this process and its children have as many descriptors open as may be; return the soft limit as it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def lower_limit(soft: int) -> None:
    """Give this process the soft limit that its creator had."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
