"""Published results of PPO on HalfCheetah, Hopper and Walker2d after a million steps, with their
sources.

All of ``RECIPE`` have the settings of ``benchmarks/published.toml``; the others are here because
people compare with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROBOTS = ("HalfCheetah", "Hopper", "Walker2d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    mean: float
    low: float | None = None
    """``low`` and ``high``: one standard deviation over runs either way, or the interval that the
    source gives."""
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:,.0f}"
        return f"{self.mean:,.0f} ({self.low:,.0f} – {self.high:,.0f})"


def around(mean: float, std: float) -> Reported:
    return Reported(mean=mean, low=mean - std, high=mean + std)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    name: str
    address: str
    versions: str
    """Versions of the robots."""
    runs: str
    figure: str
    """What the numbers mean."""
    differs: str = ""
    """Settings that differ from the recipe; empty where none do."""
    returns: Mapping[str, Reported]
    """Robot without version → return."""


RECIPE = (
    Source(
        name="OpenAI Baselines ppo2",
        address="https://github.com/openai/baselines/blob/e1fc14600295dde0fc976fc3409557020c1553ab/benchmarks_mujoco1M.htm",
        versions="v2",
        runs="6",
        figure="mean over runs",
        returns={
            "HalfCheetah": Reported(mean=1668.58),
            "Hopper": Reported(mean=2316.16),
            "Walker2d": Reported(mean=3424.95),
        },
    ),
    Source(
        name="Baselines ppo2, run again",
        address="https://github.com/openrlbenchmark/openrlbenchmark/blob/daf3300a573a6019dfc005d09ff6964d8002c43e/static/baseline_vs_cleanrl.md",
        versions="v2",
        runs="3",
        figure="last 100 episodes of training, mean ± std over runs",
        returns={
            "HalfCheetah": around(1428.55, 62.40),
            "Hopper": around(2158.65, 302.33),
            "Walker2d": around(3356.49, 322.61),
        },
    ),
    Source(
        name="CleanRL",
        address="https://github.com/openrlbenchmark/openrlbenchmark/blob/daf3300a573a6019dfc005d09ff6964d8002c43e/static/baseline_vs_cleanrl.md",
        versions="v2",
        runs="3",
        figure="last 100 episodes of training, mean ± std over runs",
        returns={
            "HalfCheetah": around(2262.50, 1196.81),
            "Hopper": around(2311.49, 440.99),
            "Walker2d": around(3312.32, 429.87),
        },
    ),
    Source(
        name="CleanRL",
        address="https://github.com/vwxyzjn/cleanrl/blob/09f7a7f2f8038ebb532447815c728cf69eec7382/docs/benchmark/ppo_continuous_action.md",
        versions="v4",
        runs="3",
        figure="last 100 episodes of training, mean ± std over runs",
        returns={
            "HalfCheetah": around(1442.64, 46.03),
            "Hopper": around(2382.86, 271.74),
            "Walker2d": around(2287.95, 571.78),
        },
    ),
)
"""The same settings."""

OTHERS = (
    Source(
        name="Engstrom et al. 2020",
        address="https://arxiv.org/abs/2005.12729",
        versions="v2",
        runs="≥ 80",
        figure="table 2: mean with its 95 % interval",
        differs="learning rates tuned for each robot",
        returns={
            "Hopper": Reported(mean=2513, low=2391, high=2632),
            "Walker2d": Reported(mean=3292, low=3157, high=3426),
        },
    ),
    Source(
        name="PPO paper (2017)",
        address="https://arxiv.org/abs/1707.06347",
        versions="v1",
        runs="–",
        figure="figure 3, as read off in Tianshou's table",
        differs="learning rate not annealed",
        returns={
            "HalfCheetah": Reported(mean=1800),
            "Hopper": Reported(mean=2330),
            "Walker2d": Reported(mean=3460),
        },
    ),
    Source(
        name="Spinning Up (PyTorch)",
        address="https://spinningup.openai.com/en/latest/spinningup/bench_ppo.html",
        versions="v3",
        runs="10",
        figure="curves, as read off in Tianshou's table",
        differs="observations and rewards not normalised, 4,000 steps an update",
        returns={
            "HalfCheetah": Reported(mean=1670),
            "Hopper": Reported(mean=1850),
            "Walker2d": Reported(mean=1230),
        },
    ),
    Source(
        name="Tianshou",
        address="https://github.com/thu-ml/tianshou/blob/1da9b86cbaca85959a396abe999593cb565d3670/examples/mujoco/README.md",
        versions="v3",
        runs="10",
        figure="best mean test return within 1M steps ± std over runs",
        differs="advantages computed anew every epoch and not normalised, initial log std −0.5, several environments",
        returns={
            "HalfCheetah": around(5783.9, 1244.0),
            "Hopper": around(2609.3, 700.8),
            "Walker2d": around(3588.5, 756.6),
        },
    ),
    Source(
        name="SB3 RL Zoo",
        address="https://github.com/DLR-RM/rl-baselines3-zoo/blob/0088472b8cb622732bdbc4aa3d0d0abde86c67ed/benchmark.md",
        versions="v3",
        runs="1",
        figure="deterministic evaluation ± std over episodes",
        differs="hyperparameters tuned for each robot",
        returns={
            "HalfCheetah": around(5819.10, 663.53),
            "Hopper": around(2410.44, 10.03),
            "Walker2d": around(3478.80, 821.71),
        },
    ),
)
"""Other settings."""


def means(robot: str) -> tuple[float, float]:
    """The lowest and the highest mean among the sources with the recipe."""
    found = [source.returns[robot].mean for source in RECIPE]
    return min(found), max(found)


def band(robot: str) -> tuple[float, float]:
    """The range of these means including the published spreads."""
    found = [source.returns[robot] for source in RECIPE]
    lows = [one.mean if one.low is None else one.low for one in found]
    highs = [one.mean if one.high is None else one.high for one in found]
    return min(lows), max(highs)
