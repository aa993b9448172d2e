"""``python -m benchmarks``: the comparison."""

from benchmarks.compare import main

main()
