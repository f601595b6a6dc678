"""What happens in a round, decided from its seed alone: pure, so that a seed can be printed and repeated.

seed -> Plan: how the cluster is made, which tasks two clients submit and when, and what disturbs it meanwhile
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["FATAL", "LOSING", "WINDOW", "Action", "Plan", "TaskPlan", "make_plan"]

How = Literal["value", "raise", "large", "put"]

#: Seconds within which submits and disturbances happen, from the moment at which the cluster runs.
WINDOW = 1.2

#: Seconds after the start of a create at which its process is killed: before, during and after all that it does.
CREATE_KILL = 0.4

#: Disturbances that may end the cluster, as `Action.name`; a create with "replace" and a limit in the spec may too.
FATAL = frozenset(
    {"kill broker", "kill controller", "kill nanny", "kill all", "teardown force", "teardown twice", "teardown claims"}
)

#: Disturbances by which a running task may be lost together with its engine.
LOSING = frozenset({"kill engine", "kill all", "kill nanny", "restart"})


@dataclass(frozen=True)
class TaskPlan:
    """One task: it appends its number to a file, takes some time, and has an outcome of its own."""

    number: int
    #: 0 is the client in this process, 1 one in a process of its own.
    client: int
    at: float
    seconds: float
    how: How
    retries: int
    #: Seconds after which it is interrupted, if it has a limit.
    limit: float | None = None


@dataclass(frozen=True)
class Action:
    """One disturbance; what its name does not need is empty."""

    at: float
    #: A verb, and what it is done to or how: "kill engine", "teardown claims".
    name: str
    #: For how long a process is stopped.
    seconds: float = 0.0
    #: Size to scale to.
    n: int = 0
    #: Numbers of tasks.
    tasks: tuple[int, ...] = ()
    #: What each of several creates at once does about a cluster that is there.
    modes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One round."""

    seed: int
    n: int
    spec: Mapping[str, object]
    #: "plain"; "killed": the first creator is killed and its step repeated; "race": several at once.
    create: Literal["plain", "killed", "race"]
    #: When the creator is killed.
    create_kill: float
    #: What each creator of a race does about a cluster that is there.
    create_modes: tuple[str, ...]
    tasks: tuple[TaskPlan, ...]
    actions: tuple[Action, ...]

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return f"chaos-{self.seed}"

    def tasks_of(self, client: int) -> list[TaskPlan]:
        """Return one client's tasks, in the order in which it submits them."""
        return sorted((task for task in self.tasks if task.client == client), key=lambda task: task.at)

    def __str__(self) -> str:
        last = max((task.at for task in self.tasks), default=0.0)
        kinds = {how: sum(task.how == how for task in self.tasks) for how in ("value", "raise", "large", "put")}
        lines = [
            f"seed {self.seed}: {self.create} create of {self.n} engines {dict(self.spec) or ''}".rstrip(),
            f"  {len(self.tasks)} tasks until {last:.2f} s: {kinds}, {len(self.tasks_of(1))} by a second process",
        ]
        if self.create == "killed":
            lines.append(f"  the first creator is killed after {self.create_kill:.2f} s")
        if self.create == "race":
            lines.append(f"  creators at once: {', '.join(self.create_modes)}")
        for action in self.actions:
            details = {"seconds": round(action.seconds, 2), "n": action.n, "tasks": action.tasks, "modes": action.modes}
            shown = {key: value for key, value in details.items() if value or (key == "n" and action.name == "scale")}
            lines.append(f"  {action.at:.2f} s {action.name} {shown or ''}".rstrip())
        return "\n".join(lines)


def make_plan(seed: int) -> Plan:
    """Decide a round."""
    rng = random.Random(seed)
    create = rng.choices(("plain", "killed", "race"), (7, 2, 1))[0]
    tasks = _tasks(rng)
    actions = sorted((_action(rng, tasks) for _ in range(rng.randint(1, 4))), key=lambda action: action.at)
    return Plan(
        seed=seed,
        n=rng.choice((0, 1, 2, 2, 3, 3, 4)),
        spec=_spec(rng),
        create=create,  # type: ignore[arg-type]  # one of three
        create_kill=rng.uniform(0.0, CREATE_KILL),
        create_modes=tuple(rng.choice(("attach", "attach", "replace", "fail")) for _ in range(rng.randint(2, 3))),
        tasks=tasks,
        actions=tuple(actions),
    )


def _spec(rng: random.Random) -> dict[str, object]:
    spec: dict[str, object] = {}
    if rng.random() < 0.15:
        spec["start_method"] = "spawn"
    if rng.random() < 0.1:
        spec["idle_timeout"] = rng.choice((0.5, 2.0))
    if rng.random() < 0.1:
        spec["lifetime"] = rng.uniform(0.5, 2.0)
    return spec


def _tasks(rng: random.Random) -> tuple[TaskPlan, ...]:
    """Decide the tasks: quick ones by the hundred or slower ones by the dozen, in a few bursts."""
    count = rng.choice((12, 40, 300))
    longest = {12: 0.6, 40: 0.1, 300: 0.003}[count]
    large, raising = rng.choice((0.0, 0.05, 0.2)), rng.choice((0.0, 0.1))
    second = rng.random() < 0.4
    bursts = [0.0, *(rng.uniform(0.0, WINDOW) for _ in range(rng.randint(0, 3)))]
    retries = rng.choice((0, 0, 1, 2))
    limit = rng.choice((None, None, None, longest / 2))
    found = []
    for number in range(count):
        draw = rng.random()
        how: How = "raise" if draw < raising else "value"
        if count < 100 and draw > 1 - large:
            how = "large" if number % 3 else "put"
        client = int(second and number % 2)
        seconds = 0.0 if rng.random() < 0.3 else rng.uniform(0.0, longest)
        found.append(TaskPlan(number, client, rng.choice(bursts), seconds, how, retries, limit))
    return tuple(found)


def _action(rng: random.Random, tasks: tuple[TaskPlan, ...]) -> Action:
    at = rng.uniform(0.0, WINDOW)
    some = tuple(sorted(rng.sample(range(len(tasks)), min(len(tasks), rng.randint(1, 8)))))
    mild = ("scale", "scale", "restart", "cancel", "fetch", "interrupt", "end", "create")
    verb = rng.choice(("kill", "kill", "kill", "stop", *mild))
    match verb:
        case "kill":
            part = rng.choice(("engine", "engine", "engine", "broker", "controller", "nanny", "client", "all"))
            return Action(at, f"kill {part}")
        case "stop":
            part = rng.choice(("engine", "broker", "controller", "nanny", "client"))
            return Action(at, f"stop {part}", seconds=rng.uniform(0.02, 1.0))
        case "scale":
            return Action(at, "scale", n=rng.randint(0, 5))
        case "cancel" | "fetch":
            return Action(at, verb, tasks=some)
        case "end":
            return Action(at, f"teardown {rng.choice(('force', 'twice', 'claims'))}")
        case "create":
            return Action(at, "create", modes=tuple(rng.choices(("attach", "replace", "fail"), k=rng.randint(2, 3))))
        case _:
            return Action(at, verb)
