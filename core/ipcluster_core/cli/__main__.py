"""``python -m ipcluster_core.cli`` is ``ipclusterctl``."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())
