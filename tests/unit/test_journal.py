"""What an engine had begun and finished is known after it died."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipcluster_core.journal import FAREWELL_BYTES, HALF_BYTES, Finished, Journal, Progress, make_memory


@pytest.fixture
def journal() -> Iterator[Journal]:
    """An empty journal."""
    made = Journal()
    yield made
    made.close()


def run(journal: Journal, chunk: int, *payloads: bytes, begun: int = 0) -> None:
    """Run a chunk whose tasks return the payloads; `begun` more begin and do not finish."""
    journal.open_chunk(chunk)
    for index, payload in enumerate(payloads):
        journal.begin(index)
        journal.finish(index % 2, payload)
    for index in range(len(payloads), len(payloads) + begun):
        journal.begin(index)


def test_empty_journal_knows_of_no_chunk(journal: Journal) -> None:
    """An engine that never had a task lost none."""
    assert journal.read() == []


def test_journal_tells_what_finished_and_what_had_begun(journal: Journal) -> None:
    """Results are kept with their status; a task that began and has no result was running."""
    run(journal, 0, b"one", b"", b"three", begun=1)

    assert journal.read() == [Progress(0, 4, (Finished(0, b"one"), Finished(1, b""), Finished(0, b"three")))]


def test_chunk_that_was_opened_has_not_begun(journal: Journal) -> None:
    """Its tasks can run elsewhere."""
    journal.open_chunk(3)

    assert journal.read() == [Progress(3, 0, ())]


def test_two_chunks_are_kept_in_their_order(journal: Journal) -> None:
    """The broker keeps at most two with an engine; the older one comes first, whichever half it is in."""
    run(journal, 1, b"a")
    run(journal, 2, begun=1)

    assert journal.read() == [Progress(1, 1, (Finished(0, b"a"),)), Progress(2, 1, ())]


def test_third_chunk_takes_the_place_of_the_first(journal: Journal) -> None:
    """When it comes, all of the first has been told."""
    for chunk in range(5):
        run(journal, chunk, *[bytes((chunk,))] * (5 - chunk))

    assert journal.read() == [
        Progress(3, 2, (Finished(0, b"\3"), Finished(1, b"\3"))),
        Progress(4, 1, (Finished(0, b"\4"),)),
    ]


def test_result_that_is_too_large_is_not_kept(journal: Journal) -> None:
    """Whoever finished it must send it at once; that it finished is known, and what follows is kept."""
    journal.open_chunk(0)
    journal.begin(0)
    large = journal.finish(0, b"x" * HALF_BYTES)
    journal.begin(1)
    small = journal.finish(0, b"small")

    assert (large, small) == (False, True)
    assert journal.read() == [Progress(0, 2, (Finished(0, None), Finished(0, b"small")))]


@pytest.mark.parametrize(("spare", "kept"), [(0, True), (-1, False)])
def test_result_may_fill_a_half_to_its_last_byte(journal: Journal, spare: int, kept: bool) -> None:
    """12 bytes tell of the chunk, 5 of the task; one byte more does not fit."""
    run(journal, 1, b"other")
    journal.open_chunk(0)

    assert journal.finish(0, b"x" * (HALF_BYTES - 12 - 5 - spare)) == kept
    assert journal.read()[1] == Progress(1, 1, (Finished(0, b"other"),))


def test_result_that_need_not_be_kept_is_not(journal: Journal) -> None:
    """One with buffers of its own is sent at once in any case."""
    journal.open_chunk(0)
    journal.begin(0)

    assert not journal.finish(0, b"small", keep=False)
    assert journal.read() == [Progress(0, 1, (Finished(0, None),))]


def test_results_fill_a_half_and_never_more(journal: Journal) -> None:
    """Those that find no room are sent at once, and the other chunk's are not touched."""
    run(journal, 1, b"other")
    journal.open_chunk(0)
    kept = [journal.finish(0, b"x" * 1000) for _ in range(300)]
    older, newer = journal.read()

    assert kept == [True] * kept.count(True) + [False] * kept.count(False)
    assert HALF_BYTES - 1100 < kept.count(True) * 1005 < HALF_BYTES
    assert older.finished == (Finished(0, b"x" * 1000),) * kept.count(True) + (Finished(0, None),) * kept.count(False)
    assert newer == Progress(1, 1, (Finished(0, b"other"),))


def test_full_half_counts_what_fits(journal: Journal) -> None:
    """Without room even for the note that a task finished, its result was sent, and nothing is overwritten."""
    journal.open_chunk(0)
    noted = sum(journal.finish(0, b"") for _ in range(HALF_BYTES // 4))

    assert noted == (HALF_BYTES - 12) // 5
    assert journal.read() == [Progress(0, 0, (Finished(0, b""),) * noted)]


def test_journal_outlives_the_process_that_wrote_it(journal: Journal) -> None:
    """What a killed engine had finished is known to its nanny."""
    pid = os.fork()
    if pid == 0:
        run(journal, 0, b"done", begun=1)
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)

    assert os.WTERMSIG(status) == signal.SIGKILL
    assert journal.read() == [Progress(0, 2, (Finished(0, b"done"),))]


def test_journal_in_memory_of_its_own_is_shared_through_the_descriptor() -> None:
    """An engine that is executed anew inherits the descriptor and nothing else."""
    fd = make_memory()
    try:
        nanny, engine = Journal(fd), Journal(fd)
    finally:
        os.close(fd)
    run(engine, 1, b"done", begun=1)
    found = nanny.read()
    nanny.close()
    engine.close()

    assert found == [Progress(1, 2, (Finished(0, b"done"),))]


def test_journal_is_true_at_every_step_of_a_write(journal: Journal) -> None:
    """A kill may come between any two: no task counts as begun, or as finished, before it was."""
    run(journal, 0, b"a", b"b", begun=1)
    found: list[list[Progress]] = []

    def look(frame: FrameType, event: str, what: object) -> None:
        if event == "c_return":
            found.append(journal.read())

    sys.setprofile(look)
    try:
        run(journal, 2, b"c")
    finally:
        sys.setprofile(None)
    of_new = [progress for (progress,) in found if progress.chunk == 2]
    of_old = [progress for (progress,) in found if progress.chunk == 0]

    assert [(p.begun, len(p.finished)) for p in of_new] == sorted((p.begun, len(p.finished)) for p in of_new)
    assert of_new[0] == Progress(2, 0, ())
    assert of_new[-1] == Progress(2, 1, (Finished(0, b"c"),))
    assert {p.finished for p in of_new} == {(), (Finished(0, b"c"),)}
    assert of_old[-1] == Progress(0, 0, ()), "the old chunk is given up before its place is used"


def test_journal_tells_why_an_engine_left(journal: Journal) -> None:
    """Beside what it had done; a long reason is cut."""
    run(journal, 1, b"a")
    before = journal.farewell()
    journal.leave("it has run enough: ü")

    assert before == ""
    assert journal.farewell() == "it has run enough: ü"
    assert journal.read() == [Progress(1, 1, (Finished(0, b"a"),))]
    journal.leave("x" * 1000)
    assert journal.farewell() == "x" * FAREWELL_BYTES


@settings(max_examples=200, derandomize=True, database=None)
@given(garbage=st.binary(min_size=1, max_size=60), at=st.integers(0, 60), half=st.sampled_from([0, HALF_BYTES]))
def test_a_journal_that_user_code_wrote_over_is_read_as_far_as_it_goes(garbage: bytes, at: int, half: int) -> None:
    """The nanny reads it when the engine has crashed, and must not crash with it."""
    journal = Journal()
    run(journal, 4, b"one", b"two", begun=1)
    run(journal, 5, b"three")
    journal._map[half + at : half + at + len(garbage)] = garbage
    read = journal.read()
    journal.close()

    assert len(read) <= 2
    assert sum(len(done.payload or b"") for part in read for done in part.finished) <= 2 * HALF_BYTES


def test_the_counts_of_a_journal_that_was_written_over_are_not_believed(journal: Journal) -> None:
    """Four thousand million tasks, and a result that ends far behind the memory."""
    run(journal, 0, b"one")
    journal._map[8:12] = b"\xff" * 4
    assert journal.read()[0].finished[0] == Finished(0, b"one")
    journal._map[13:17] = b"\xf0" * 4

    assert journal.read() == [Progress(0, 1, ())]


def test_journal_tells_which_task_runs(journal: Journal) -> None:
    """None before the first, between two, and after the last."""
    found = [journal.running()]
    for chunk in (1, 2):
        journal.open_chunk(chunk)
        for index in range(2):
            found.append(journal.running())
            journal.begin(index)
            found.append(journal.running())
            journal.finish(0, b"")
    found.append(journal.running())

    assert found == [None, None, (1, 0), None, (1, 1), None, (2, 0), None, (2, 1), None]
