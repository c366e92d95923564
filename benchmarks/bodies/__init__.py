"""Tables of bodies: what searches are compared on (:mod:`benchmarks.table_of_bodies`)."""
