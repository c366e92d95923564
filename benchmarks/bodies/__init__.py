"""Tables of bodies: what searches are compared on (:mod:`.table`)."""
