"""Garbage at the sockets: from strangers, and from partners that have shown the secret.

Broker and controller are the real ones, as threads of this process; an honest client works on beside.
"""

from __future__ import annotations

import json
import pickle
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipcluster_core import Client, Cluster, wire
from ipcluster_core.channel import Channel, connect
from ipcluster_core.incarnation import CONTROL, TASK, find_record, secret_of
from ipcluster_core.process import identify
from ipcluster_core.testing import StubLauncher, memory_store
from ipcluster_core.versions import ours
from ipcluster_core.wire import Buffer, Kind, Notice

KEY = bytes(range(16))

#: Seconds in which an honest client has its result, whatever others send.
PATIENCE = 10.0

#: What JSON can hold and nobody expects.
HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([True, -1, 1.5, 2**63, 2**64, 2**200, 1e308, float("inf"), float("-inf"), float("nan")]),
    st.sampled_from(["", "\ud800", "a/b", "client", "engine", "x" * 500, "00" * 16]),
    st.sampled_from([None, [], {}, [[[]]], [None], {"a": []}, ["x-1"], ["-"], [2**70]]),
)


class Target(NamedTuple):
    """A cluster to send to, and its honest client."""

    folder: str
    secret: str
    cluster: Cluster
    client: Client


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """One engine. A pickle that broker or controller open is an error."""
    loads = pickle.loads

    def guarded(*args: Any, **kwargs: Any) -> object:
        assert not threading.current_thread().name.startswith("stub "), "broker or controller open a pickle"
        return loads(*args, **kwargs)

    monkeypatch.setattr(pickle, "loads", guarded)
    with StubLauncher.installed(), memory_store() as store:
        cluster = Cluster.create_sync("target", n=1, store=store)
        found = find_record(store, "target")
        assert found is not None
        with Client.connect("target", store=store) as client:
            yield Target(found[0].folder, secret_of(store, found[0].tag), cluster, client)
            work_honestly(client)
        assert cluster.status_sync().state == "running"


def work_honestly(client: Client) -> None:
    """Do what an honest client does: tasks, values, questions."""
    pinned = client.options(engines=[0])
    assert pinned.submit(pow, 2, 10).result(PATIENCE) == 1024
    future = pinned.submit(sum, client.put([1, 2, 3]))
    assert future.result(PATIENCE) == 6
    assert client.result(future.task_id, PATIENCE) == 6


def hello(secret: str, **changes: Any) -> dict[str, Any]:
    """Return what a client introduces itself with."""
    plain = {"role": "client", "client": "mallory", "protocol": wire.VERSION, "secret": secret}
    more = {"process": identify().to_dict(), "segments": "c1x1", "versions": dict(ours()), "unchecked": False}
    return {**plain, **more, **changes}


def send_all(folder: str, name: str, messages: Sequence[Sequence[Buffer]], raw: bytes = b"") -> list[list[bytes]]:
    """Connect, send messages and then raw bytes, hang up; return what was answered until then."""
    with suppress(BrokenPipeError, ConnectionResetError):
        end = connect(folder, name)
        channel = Channel(end)
        try:
            for frames in messages:
                channel.send(frames)
            channel.flush(1.0)
            if raw:
                end.settimeout(1.0)
                end.sendall(raw)
            return answers(channel)
        finally:
            channel.close()
    return []


def answers(channel: Channel, seconds: float = 0.02) -> list[list[bytes]]:
    """Return what comes within a moment."""
    found: list[list[bytes]] = []
    until = time.monotonic() + seconds
    with suppress(EOFError):
        while select.select([channel], [], [], max(0.0, until - time.monotonic()))[0]:
            found += [[bytes(frame) for frame in frames] for frames in channel.receive()]
    return found


MESSAGES: list[list[Buffer]] = [
    wire.Function(KEY, b"no pickle").encode(),
    wire.Submit(0, 1, KEY, wire.lengths([b"ab"]), b"ab", {"engines": [7], "retries": 1, "name": "x"}).encode(),
    wire.Submit(1, 2, KEY, wire.lengths([b"ab", b"c"]), b"abc").encode(),
    wire.Submit(3, 1, KEY, wire.lengths([b"a"]), b"a", {"refs": [KEY.hex()], "timeout": 1.0}, [b"large"]).encode(),
    wire.Value(KEY, b"blob", [b"buffer"]).encode(),
    wire.Drop(KEY).encode(),
    wire.Cancel(1, running=True).encode(),
    wire.Chunk(0, 0, 1, KEY, wire.lengths([b"a"]), b"a").encode(),
    wire.Done(0, 0, 1, 10, wire.lengths([b"a"]), b"\0", b"a", [b"{}"]).encode(),
    wire.Results(0, 1, wire.lengths([b"a"]), b"\0", b"a").encode(),
    Notice(Kind.ASK, {"id": 5, "about": "engines"}).encode(),
    Notice(Kind.ASK, {"id": 6, "about": "result", "task": "mallory-1"}).encode(),
    Notice(Kind.ASK, {"id": 7, "about": "cancel", "tasks": ["mallory-0", "mallory-1"]}).encode(),
    Notice(Kind.END, {"reason": "because I say so"}).encode(),
    Notice(Kind.BYE, {}).encode(),
]


@st.composite
def mutated(draw: st.DrawFn, messages: Sequence[Sequence[Buffer]]) -> list[bytes]:
    """Draw a real message with something wrong in it."""
    frames = [bytes(frame) for frame in draw(st.sampled_from(messages))]
    at = draw(st.integers(0, len(frames) - 1))
    match draw(st.sampled_from(["nothing", "byte", "extreme", "cut", "leave out", "repeat", "json", "frame"])):
        case "byte" if frames[at]:
            where, value = draw(st.integers(0, len(frames[at]) - 1)), draw(st.integers(0, 255))
            frames[at] = frames[at][:where] + bytes((value,)) + frames[at][where + 1 :]
        case "extreme" if len(frames[0]) > 2:
            where = draw(st.integers(1, len(frames[0]) - 1))
            frames[0] = (frames[0][:where] + b"\xff" * draw(st.sampled_from([1, 4, 8])))[: len(frames[0])].ljust(
                len(frames[0]), b"\xff"
            )
        case "cut":
            frames[at] = frames[at][: draw(st.integers(0, len(frames[at])))]
        case "leave out":
            del frames[at]
        case "repeat":
            frames.insert(at, frames[at])
        case "frame":
            frames[at] = draw(st.binary(max_size=40))
        case "json":
            frames = damaged_json(draw, frames)
        case _:
            pass
    return frames or [b""]


def damaged_json(draw: st.DrawFn, frames: list[bytes]) -> list[bytes]:
    """Put something hostile into the JSON object of a message, if it has one."""
    for at, frame in enumerate(frames):
        start = frame.find(b"{")
        with suppress(ValueError):
            data = json.loads(frame[start:])
            if start >= 0 and isinstance(data, dict) and data:
                data[draw(st.sampled_from(sorted(data)))] = draw(HOSTILE)
                return [*frames[:at], frame[:start] + json.dumps(data).encode(), *frames[at + 1 :]]
    return frames


#: A cluster is made once for many examples: each of them must leave it as it was.
fuzzing = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("name", [TASK, CONTROL])
@fuzzing
@given(data=st.data())
def test_strangers_harm_nobody(target: Target, name: str, data: st.DataObject) -> None:
    """Bytes that are no message, and messages without the secret: at most a refusal, and a closed connection."""
    greetings = [Notice(Kind.HELLO, hello("wrong")).encode(), *MESSAGES]
    messages = data.draw(st.lists(mutated(greetings), max_size=3))
    raw = data.draw(st.binary(max_size=60) | st.just(b"\1\0\0\0" + b"\xff" * 8) | st.just(b"\xff" * 20))
    said = send_all(target.folder, name, messages, raw)

    if name == TASK:
        assert {frames[0][0] for frames in said} <= {Kind.REFUSED}
    else:
        assert not any(json.loads(frames[0])["ok"] for frames in said)
    work_honestly(target.client)


@fuzzing
@given(field=st.sampled_from(sorted(hello(""))), value=HOSTILE, role=st.sampled_from(["client", "engine"]))
def test_a_hello_with_the_secret_and_nonsense_harms_nobody(
    target: Target, field: str, value: object, role: str
) -> None:
    """Whatever stands in its fields."""
    greeting = hello(target.secret, role=role, engine=99, incarnation=0, host="h")
    greeting[field] = value
    send_all(target.folder, TASK, [Notice(Kind.HELLO, greeting).encode(), *MESSAGES])

    work_honestly(target.client)


@settings(fuzzing, max_examples=200)
@given(messages=st.lists(mutated(MESSAGES), min_size=1, max_size=6), twice=st.booleans())
def test_a_client_that_talks_nonsense_harms_itself_only(
    target: Target, messages: list[list[Buffer]], twice: bool
) -> None:
    """It has shown the secret, and what it sends then is damaged, out of order, or contradicts itself."""
    greeting: list[Buffer] = Notice(Kind.HELLO, hello(target.secret)).encode()
    start = [greeting, MESSAGES[0], *([greeting] if twice else [])]
    send_all(target.folder, TASK, [*start, *messages])

    work_honestly(target.client)


@settings(fuzzing, max_examples=100)
@given(messages=st.lists(mutated(MESSAGES), min_size=1, max_size=6), engine=st.sampled_from([0, 99]))
def test_an_engine_that_talks_nonsense_harms_itself_only(
    target: Target, messages: list[list[Buffer]], engine: int
) -> None:
    """Also one that takes the place of another."""
    greeting = hello(target.secret, role="engine", engine=engine, incarnation=0, host="h")
    send_all(target.folder, TASK, [Notice(Kind.HELLO, greeting).encode(), *messages])

    work_honestly(target.client)


VERBS: dict[str, Mapping[str, Any]] = {
    "status": {},
    "wait": {"n": 1, "limit": 0.01},
    "scale": {"set": "default", "n": 1},
    "restart": {"engines": [], "limit": 0.01},
    "logs": {"engines": [0], "tail": 3},
    "nonsense": {},
}


@settings(fuzzing, max_examples=200)
@given(verb=st.sampled_from(sorted(VERBS)), data=st.data())
def test_questions_that_make_no_sense_are_refused(target: Target, verb: str, data: st.DataObject) -> None:
    """With the secret, and something wrong in one field; the next question is answered."""
    question = {"verb": verb, "secret": target.secret, **VERBS[verb]}
    field = data.draw(st.sampled_from(sorted(question)))
    question[field] = data.draw(HOSTILE)
    send_all(target.folder, CONTROL, [[json.dumps(question).encode()]])

    target.cluster.scale_sync(1)
    assert target.cluster.status_sync().sets == {"default": 1}


@pytest.mark.parametrize(
    "body", [b"[" * 60_000, b"", b"null", b"[]", b'"x"', b"\xff", b"{}", b'{"secret": 1}'], ids=lambda body: body[:8]
)
def test_what_is_no_question_is_refused(target: Target, body: bytes) -> None:
    """Before the secret was shown, too: the controller goes on."""
    said = send_all(target.folder, CONTROL, [[body]])

    assert [json.loads(frames[0])["ok"] for frames in said] in ([False], [])
    assert target.cluster.status_sync().state == "running"


def idle_seconds(run: Callable[[], object]) -> float:
    """Return how much processor time this process takes in a moment after something was done."""
    run()
    start = time.process_time()
    time.sleep(0.3)  # what is measured is that nothing happens
    return time.process_time() - start


def test_a_wait_without_a_sensible_limit_does_not_keep_the_controller_busy(target: Target) -> None:
    """A limit that is not a number is never over: refused."""
    channel = Channel(connect(target.folder, CONTROL))
    question = {"verb": "wait", "secret": target.secret, "n": 1, "limit": float("nan")}
    try:
        channel.send([json.dumps({**question, "n": 0, "limit": 0.0}).encode()])
        assert answers(channel, 1.0)

        assert idle_seconds(lambda: channel.send([json.dumps({**question, "n": 2}).encode()])) < 0.1
    finally:
        channel.close()
