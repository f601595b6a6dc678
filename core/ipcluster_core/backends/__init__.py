"""What runs the tasks of a cluster."""

from .base import Backend, get_backend

__all__ = ["Backend", "get_backend"]
