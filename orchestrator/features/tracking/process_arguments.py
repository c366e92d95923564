"""Arguments of the process that tells trackers; it imports nothing else before it reads them."""

from __future__ import annotations

GIVE_WAY = "--give-way"
"""Take only CPU time that nothing else wants."""
AT_ONCE = "--at-once"
"""Do what there is to do, and end."""
