"""Step 3: end the cluster. Running it twice does no harm. Usage: teardown.py [NAME]."""

import sys

from ipcluster_core import ClusterManager

name = sys.argv[1] if len(sys.argv) > 1 else "flights"
report = ClusterManager().teardown_sync(name)
print(f"{report.outcome}: {report.message}")
for leftover in report.leftovers:
    print(f"left over: {leftover}")
