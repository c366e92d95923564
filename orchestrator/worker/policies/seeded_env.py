"""One environment of gymnasium whose first episode starts from a given seed."""

from __future__ import annotations

from typing import Any

import gymnasium


class SeededEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The first ``reset()`` has ``seed`` unless it is given another one, as that of a ``VecEnv``
    after ``venv.seed(seed)``; later ones go on from there.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self._seed: int | None = seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        first_seed = self._seed
        self._seed = None
        # As a VecEnv does: a user's environment may take no options.
        given = {} if options is None else {"options": options}
        return self.env.reset(seed=first_seed if seed is None else seed, **given)
