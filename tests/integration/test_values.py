"""Values that are sent once and used by many tasks."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steps
from ipcluster_core import Client, Cluster, Ref, errors
from ipcluster_core.segments import folder_of


@pytest.fixture
def client() -> Iterator[Client]:
    """Two engines and a client."""
    with Cluster("values", n=2) as cluster, cluster.client() as client:
        yield client


def total(array: object, factor: float = 1.0) -> float:
    """Use an array."""
    return float(np.sum(array)) * factor  # type: ignore[call-overload]


def identity_of(value: object) -> int:
    """Tell whether an engine has one object or several."""
    return id(value)


def kept() -> int:
    """Return how many values this engine keeps."""
    from ipcluster_core import refs

    return len(refs._table)


def test_a_value_is_sent_once_and_used_by_many_tasks(client: Client) -> None:
    """Alone, by keyword, and inside of lists and dicts; each engine has it once."""
    ref: Ref[Any] = client.put(np.ones(1_000_000))
    small: Ref[dict[str, int]] = client.put({"three": 3})

    assert list(client.map(total, [ref] * 20, [2.0] * 20)) == [2e6] * 20
    assert client.submit(total, array=ref).result(10) == 1e6
    assert client.submit(lambda given: given["list"][0]["three"], {"list": [small]}).result(10) == 3
    for engine in (0, 1):
        one = client.options(engines=[engine])
        assert len(set(one.map(identity_of, [ref] * 10))) == 1
    folder = Path(folder_of(steps.record_of("values").uid))
    assert len(list(folder.glob("c*"))) == 1


def test_a_value_is_given_up_with_the_last_reference_to_it(client: Client) -> None:
    """By the engines, the broker and the shared memory; a task that still needs it gets it."""
    ref: Ref[Any] | None = client.put(np.ones(1_000_000))
    pending = [client.submit(total, ref) for _ in range(50)]
    assert client.run(kept, engines=[0, 1]) is not None
    ref = None
    gc.collect()

    assert [future.result(10) for future in pending] == [1e6] * 50
    steps.wait_until(lambda: set(client.run(kept).values()) == {0})
    again: Ref[Any] = client.put(np.zeros(1_000_000))
    folder = Path(folder_of(steps.record_of("values").uid))
    assert client.submit(total, again).result(10) == 0.0
    assert len(list(folder.glob("c*"))) == 1


def test_an_engine_that_was_replaced_gets_the_values_again(client: Client) -> None:
    """Nobody has to put them anew."""
    ref = client.put([1, 2, 3])
    assert client.run(sum, ref) == {0: 6, 1: 6}
    Cluster.connect_sync("values").restart_sync([0])

    assert client.run(sum, ref) == {0: 6, 1: 6}


def test_a_value_that_cannot_be_loaded_is_the_error_of_the_tasks_that_use_it(client: Client) -> None:
    """The engine lives on."""

    class Stubborn:
        """Comes out of no pickle."""

        def __reduce__(self) -> tuple[object, ...]:
            return _refuse, ()

    ref = client.put(Stubborn())
    with pytest.raises(RuntimeError, match="not here"):
        client.submit(identity_of, ref).result(10)
    assert client.submit(abs, -1).result(10) == 1


def _refuse() -> None:
    raise RuntimeError("not here")


def test_a_ref_of_another_client_is_refused_once_that_one_is_gone(client: Client) -> None:
    """And says why."""
    with Client.connect("values") as other:
        ref = other.put([1])
        assert other.submit(sum, ref).result(10) == 1
        assert client.submit(sum, ref).result(10) == 1

    with pytest.raises(errors.EngineLost, match="is not \\(or no longer\\) here"):
        client.submit(sum, ref).result(10)


def test_a_ref_is_not_sent_elsewhere(client: Client) -> None:
    """Only as an argument of a task."""
    ref = client.put(1)

    with pytest.raises(TypeError, match="can only be an argument of a task"):
        pickle.dumps(ref)
    with pytest.raises(TypeError, match="can only be an argument of a task"):
        client.put([ref])
