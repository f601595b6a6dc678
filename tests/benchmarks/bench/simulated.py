"""Engines and a client that speak the wire protocol and do no work, many of them in one process.

They are for measuring the broker: engines answer each chunk at once with results made beforehand, and the client
sends tasks that nobody opens.
"""

from __future__ import annotations

import os
import pathlib
import platform
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from bench.processes import clock_ns
from ipcluster_core import Cluster, versions, wire
from ipcluster_core.channel import Channel, connect
from ipcluster_core.incarnation import TASK, find_record, secret_of
from ipcluster_core.process import children, identify
from ipcluster_core.store import open_store
from ipcluster_core.wire import Kind, Notice, Status

__all__ = ["Head", "Simulation"]

#: Tasks in one message of a client that has many to send.
RUN_TASKS = 1024

#: Seconds after which an answer will not come any more.
_PATIENCE = 300.0

#: Pickle of the arguments ``(1,)`` and no keywords, and of the result None. Nobody opens them.
_CALL = b"\x80\x05K\x01\x85\x94N\x86\x94."
_RESULT = b"\x80\x05N."

#: What a task is said to have taken, in ns.
_TASK_NS = 2_000

_FUNCTION = bytes(16)


class Head:
    """The controller, broker and nanny of a cluster without engines, and what they have used."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cluster = Cluster.create_sync("scale", n=0, store=url, idle_timeout=1800.0, lifetime=7200.0)
        store = open_store(url)
        found = find_record(store, "scale")
        if found is None:
            raise RuntimeError("the record is gone")
        self.record = found[0]
        self.secret = secret_of(store, self.record.tag)
        nanny = self.record.jobs[0].nanny or {}
        self.parts = {self._part(pid): pid for pid in [int(nanny["pid"]), *children(int(nanny["pid"]))]}

    @staticmethod
    def _part(pid: int) -> str:
        """Tell which part a process is, by the log that it writes."""
        return os.path.basename(os.readlink(f"/proc/{pid}/fd/1")).removesuffix(".log")

    def cpu(self, part: str = "broker") -> float:
        """Return the CPU seconds that a part has used."""
        return clock_ns(self.parts[part]) / 1e9

    def memory(self, part: str = "broker") -> int:
        """Return the private bytes of a part."""
        with pathlib.Path(f"/proc/{self.parts[part]}/smaps_rollup").open() as file:
            lines = [line.partition(":") for line in file]
        return sum(int(rest.split()[0]) * 1024 for key, _, rest in lines if key in ("Private_Clean", "Private_Dirty"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.teardown_sync(force=True)


class Simulation:
    """The sockets of engines and of one client; `pump` serves them all."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._epoll = select.epoll()
        self._channels: dict[int, Channel] = {}  # by descriptor
        self._engines = 0
        self._number = 0
        self.welcome = self.chunks = self.settled = self._answers = 0
        self._client = self._connect(
            {
                "role": "client",
                "client": "simulated",
                "process": identify().to_dict(),
                "segments": f"c{os.getpid()}-scale",
            }
        )
        self.pump(lambda: self.welcome == 1)
        self._send(self._client, wire.Function(_FUNCTION, b"a function that nobody opens").encode())

    def _connect(self, hello: Mapping[str, Any]) -> Channel:
        channel = Channel(connect(self._head.record.folder, TASK))
        common = {
            "protocol": wire.VERSION,
            "secret": self._head.secret,
            "host": platform.node(),
            "versions": dict(versions.ours()),
        }
        self._channels[channel.fileno()] = channel
        self._epoll.register(channel, select.EPOLLIN)
        self._send(channel, Notice(Kind.HELLO, {**common, **hello}).encode())
        return channel

    def _send(self, channel: Channel, frames: Sequence[wire.Buffer]) -> None:
        channel.send(frames)
        if channel.waiting:
            self._epoll.modify(channel, select.EPOLLIN | select.EPOLLOUT)

    def add_engines(self, total: int) -> None:
        """Connect more engines, until there are so many and all are welcome."""
        for number in range(self._engines, total):
            self._connect({"role": "engine", "engine": number, "incarnation": 0})
        self._engines = max(self._engines, total)
        self.pump(lambda: self.welcome == total + 1)

    def submit(self, count: int, *, each: int = RUN_TASKS) -> None:
        """Send tasks, so many in a message, and wait until the broker has taken them."""
        for first in range(0, count, each):
            size = min(each, count - first)
            message = wire.Submit(
                self._number, size, _FUNCTION, wire.lengths([_CALL]) * size, _CALL * size, {"retries": 1}
            )
            self._number += size
            self._send(self._client, message.encode())
        # It answers in the order in which it was asked.
        asked = self._answers
        self._send(self._client, Notice(Kind.ASK, {"id": 0, "about": "engines"}).encode())
        self.pump(lambda: self._answers > asked)

    def settle(self, total: int) -> None:
        """Serve until so many tasks have been settled in all."""
        self.pump(lambda: self.settled >= total)

    def pump(self, done: Callable[[], bool]) -> None:
        """Serve all sockets until something is so."""
        deadline = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer of the broker within {_PATIENCE:g} s")
            for fd, events in self._epoll.poll(1.0):
                channel = self._channels[fd]
                if events & select.EPOLLOUT:
                    channel.flush()
                    self._epoll.modify(channel, select.EPOLLIN | (select.EPOLLOUT if channel.waiting else 0))
                if events & ~select.EPOLLOUT:
                    self._drain(channel)

    def _drain(self, channel: Channel) -> None:
        for frames in channel.receive():
            match wire.kind_of(frames):
                case Kind.CHUNK:
                    self._finish(channel, wire.Chunk.decode(frames))
                case Kind.RESULTS:
                    self.settled += wire.Results.decode(frames).tasks
                case Kind.WELCOME:
                    self.welcome += 1
                case Kind.ANSWER:
                    self._answers += 1
                case kind:
                    raise RuntimeError(f"the broker sent {kind!r}: {bytes(frames[0])[:200]!r}")

    def _finish(self, channel: Channel, chunk: wire.Chunk) -> None:
        self.chunks += 1
        count = chunk.tasks
        sizes, statuses = wire.lengths([_RESULT]) * count, bytes((Status.OK,)) * count
        done = wire.Done(chunk.number, 0, count, count * _TASK_NS, sizes, statuses, _RESULT * count)
        self._send(channel, done.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()
        self._epoll.close()
