"""Tasks that create, resize, use and end a cluster."""

from __future__ import annotations

from .create import CreateClusterOperator
from .run import RunOnClusterOperator
from .scale import ScaleClusterOperator
from .teardown import TeardownClusterOperator

__all__ = [
    "CreateClusterOperator",
    "RunOnClusterOperator",
    "ScaleClusterOperator",
    "TeardownClusterOperator",
]
