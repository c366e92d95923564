"""The concurrency benchmark: what is measured (:mod:`orchestrator.bench.benchmark`) and what it
means.
"""
