"""The concurrency benchmark: what is measured (:mod:`orchestrator.bench.command`) and what it means."""
